-- Extends the leases that still hold (I3) and have not run out (I2); keeps the jobs' progress with them.
-- It waits for no row: one that somebody's transaction holds must not keep the heartbeats of all others waiting.
-- Parameters: $1 ids uuid[] (ascending), $2 epochs bigint[], $3 lease_s float8[], $4 progress jsonb[] (null: keep),
--   $5 now timestamptz or null for the database's clock, $6 holder text (null: whoever holds them).
-- Rows: id, cancel_asked of each lease that was extended; cancel_asked is null where a lease held when the statement
--   began, and a transaction holds its row: ask again. One that does not come back is lost.
-- Locks: the rows, FOR UPDATE SKIP LOCKED.
-- Index: open_jobs_pkey, one look for each id whatever the statistics say (BETWEEN: see finish.sql).
WITH given AS MATERIALIZED (
    SELECT g.id, g.epoch, g.lease_s, g.progress, coalesce($5::timestamptz, now()) AS now
    FROM unnest($1::uuid[], $2::bigint[], $3::double precision[], $4::jsonb[]) AS g(id, epoch, lease_s, progress)
), held AS MATERIALIZED (
    SELECT given.*
    FROM given CROSS JOIN LATERAL (
        SELECT FROM :"schema".open_jobs AS o
        WHERE o.id = given.id AND o.lease_epoch = given.epoch AND o.state || '' = 'leased'
          AND o.leased_by = coalesce($6::text, o.leased_by)
          -- By the clock of the moment when the row is locked: a claim may count a lease that ran out no more.
          AND o.lease_until > coalesce($5::timestamptz, clock_timestamp())
        FOR UPDATE SKIP LOCKED
    ) AS locked
), renewed AS (
    UPDATE :"schema".open_jobs AS j
    SET lease_until = held.now + make_interval(secs => held.lease_s),
        heartbeat_at = held.now,
        progress = coalesce(held.progress, j.progress)
    FROM held
    WHERE j.id BETWEEN held.id AND held.id
    RETURNING j.id, j.cancel_asked_at IS NOT NULL AS cancel_asked
)
SELECT renewed.id, renewed.cancel_asked FROM renewed
UNION ALL
SELECT passed.id, NULL
FROM (SELECT given.id, given.epoch FROM given WHERE given.id NOT IN (SELECT held.id FROM held)) AS passed
CROSS JOIN LATERAL (
    SELECT FROM :"schema".open_jobs AS o
    WHERE o.id = passed.id AND o.lease_epoch = passed.epoch AND o.state || '' = 'leased'
      AND o.leased_by = coalesce($6::text, o.leased_by)
      AND o.lease_until > coalesce($5::timestamptz, clock_timestamp())
    LIMIT 1  -- one look for each; as a join it might walk the table
) AS there
