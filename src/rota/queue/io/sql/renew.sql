-- Extends the leases that still hold (I3) and have not run out (I2); keeps the jobs' progress with them.
-- Parameters: $1 ids uuid[] (ascending), $2 epochs bigint[], $3 lease_s float8[], $4 progress jsonb[] (null: keep),
--   $5 now timestamptz or null for the database's clock.
-- Rows: id, cancel_asked of each lease that was extended; one that does not come back is lost.
-- Locks: the rows, in the order of the ids, as finish and release take them.
-- Index: open_jobs_pkey, one look for each id whatever the statistics say (BETWEEN: see finish.sql).
WITH given AS MATERIALIZED (
    SELECT g.id, g.epoch, g.lease_s, g.progress, coalesce($5::timestamptz, now()) AS now
    FROM unnest($1::uuid[], $2::bigint[], $3::double precision[], $4::jsonb[]) AS g(id, epoch, lease_s, progress)
), held AS MATERIALIZED (
    SELECT given.*
    FROM given CROSS JOIN LATERAL (
        SELECT FROM :"schema".open_jobs AS o
        WHERE o.id = given.id AND o.lease_epoch = given.epoch AND o.state || '' = 'leased'
          -- By the clock of the moment when the row is locked: a claim may count a lease that ran out no more.
          AND o.lease_until > coalesce($5::timestamptz, clock_timestamp())
        FOR UPDATE
    ) AS locked
)
UPDATE :"schema".open_jobs AS j
SET lease_until = held.now + make_interval(secs => held.lease_s),
    heartbeat_at = held.now,
    progress = coalesce(held.progress, j.progress)
FROM held
WHERE j.id BETWEEN held.id AND held.id
RETURNING j.id, j.cancel_asked_at IS NOT NULL AS cancel_asked
