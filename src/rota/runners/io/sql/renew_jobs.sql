-- Extends the leases that a runner lists in its heartbeat and that still hold (I3) and have not run out (I2).
-- Parameters: $1 ids uuid[] (ascending), $2 epochs bigint[], $3 runners text[], $4 lease_s float8, $5 now timestamptz or
--   null.
-- Rows: id, cancel_asked of each lease that was extended; one that does not come back is lost.
-- Locks: the rows, in the order of the ids.
-- Index: open_jobs_pkey, one look for each id whatever the statistics say (BETWEEN: see finish.sql of the queue).
WITH held AS MATERIALIZED (
    SELECT g.id
    FROM unnest($1::uuid[], $2::bigint[], $3::text[]) AS g(id, epoch, runner_id) CROSS JOIN LATERAL (
        SELECT FROM :"schema".open_jobs AS o
        WHERE o.id = g.id AND o.lease_epoch = g.epoch AND o.state || '' = 'leased'
          AND o.leased_by = 'runner:' || g.runner_id
          AND o.lease_until > coalesce($5::timestamptz, clock_timestamp())
        FOR UPDATE
    ) AS locked
)
UPDATE :"schema".open_jobs AS j
SET lease_until = coalesce($5::timestamptz, now()) + make_interval(secs => $4),
    heartbeat_at = coalesce($5::timestamptz, now())
FROM held WHERE j.id BETWEEN held.id AND held.id
RETURNING j.id, j.cancel_asked_at IS NOT NULL AS cancel_asked
