-- The runner takes the job: it is Running, and whoever waits for that is told. Fenced by epoch (I3); saying it again
-- changes nothing.
-- Parameters: $1 id uuid, $2 epoch bigint, $3 now timestamptz or null.
-- Rows: id; none if the lease is lost.
-- Locks: the job's rows, the one of the jobs table first.
-- Index: open_jobs_pkey, runner_jobs_pkey.
WITH held AS MATERIALIZED (
    SELECT o.id FROM :"schema".open_jobs AS o
    WHERE o.id = $1 AND o.lease_epoch = $2 AND o.state || '' = 'leased'
      AND o.lease_until > coalesce($3::timestamptz, clock_timestamp())
    FOR UPDATE
)
UPDATE :"schema".runner_jobs AS r SET accepted_at = coalesce(r.accepted_at, $3::timestamptz, now())
FROM held WHERE r.job_id = held.id
RETURNING r.job_id AS id, pg_notify(:'schema' || '_runners', 'accepted:' || r.job_id)::text AS told
