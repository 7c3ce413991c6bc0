-- Extends the leases that a runner lists in its heartbeat and that still hold (I3) and have not run out (I2).
-- It waits for no row: one that somebody's transaction holds must not keep the heartbeats of other runners waiting.
-- Parameters: $1 ids uuid[] (ascending), $2 epochs bigint[], $3 runners text[], $4 lease_s float8, $5 now timestamptz or
--   null.
-- Rows: id, cancel_asked of each lease that was extended; cancel_asked is null where a lease held when the statement
--   began, and a transaction holds its row: ask again. One that does not come back is lost.
-- Locks: the rows, FOR UPDATE SKIP LOCKED.
-- Index: open_jobs_pkey, one look for each id whatever the statistics say (BETWEEN: see finish.sql of the queue).
WITH given AS MATERIALIZED (
    SELECT g.id, g.epoch, 'runner:' || g.runner_id AS holder
    FROM unnest($1::uuid[], $2::bigint[], $3::text[]) AS g(id, epoch, runner_id)
), held AS MATERIALIZED (
    SELECT given.id
    FROM given CROSS JOIN LATERAL (
        SELECT FROM :"schema".open_jobs AS o
        WHERE o.id = given.id AND o.lease_epoch = given.epoch AND o.state || '' = 'leased'
          AND o.leased_by = given.holder
          AND o.lease_until > coalesce($5::timestamptz, clock_timestamp())
        FOR UPDATE SKIP LOCKED
    ) AS locked
), renewed AS (
    UPDATE :"schema".open_jobs AS j
    SET lease_until = coalesce($5::timestamptz, now()) + make_interval(secs => $4),
        heartbeat_at = coalesce($5::timestamptz, now())
    FROM held WHERE j.id BETWEEN held.id AND held.id
    RETURNING j.id, j.cancel_asked_at IS NOT NULL AS cancel_asked
)
SELECT renewed.id, renewed.cancel_asked FROM renewed
UNION ALL
SELECT passed.id, NULL
FROM (SELECT given.* FROM given WHERE given.id NOT IN (SELECT held.id FROM held)) AS passed
CROSS JOIN LATERAL (
    SELECT FROM :"schema".open_jobs AS o
    WHERE o.id = passed.id AND o.lease_epoch = passed.epoch AND o.state || '' = 'leased'
      AND o.leased_by = passed.holder
      AND o.lease_until > coalesce($5::timestamptz, clock_timestamp())
    LIMIT 1  -- one look for each; as a join it might walk the table
) AS there
