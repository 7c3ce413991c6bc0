-- Locks the rows of leases that still hold (I3), before more than their end is written in the same transaction.
-- Parameters: $1 ids uuid[] (ascending), $2 epochs bigint[], $3 holder text (null: whoever holds them).
-- Rows: id, cancel_asked of each lease that holds.
-- Locks: the rows, in the order of the ids, as renew and finish take them.
-- Index: open_jobs_pkey, one look for each id.
SELECT given.id, locked.cancel_asked_at IS NOT NULL AS cancel_asked
FROM unnest($1::uuid[], $2::bigint[]) AS given(id, epoch) CROSS JOIN LATERAL (
    SELECT o.cancel_asked_at FROM :"schema".open_jobs AS o
    WHERE o.id = given.id AND o.lease_epoch = given.epoch AND o.state || '' = 'leased'
      AND o.leased_by = coalesce($3::text, o.leased_by)
    FOR UPDATE
) AS locked
