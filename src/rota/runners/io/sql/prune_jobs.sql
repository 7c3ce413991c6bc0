-- Removes ended runner jobs after their retention, with their facts and sessions, a piece at a time. One whose usage is
-- not recorded stays, and kinds with a rule of their own are the workers' to remove.
-- Parameters: $1 how long a job stays after it ended, seconds float8, $2 the same for failed ones float8, $3 how many at
--   most integer, $4 now timestamptz or null.
-- Rows: one: removed: how many jobs went.
-- Locks: the removed rows, FOR UPDATE SKIP LOCKED, so that no two replicas work on the same ones.
-- Index: runner_jobs_pkey (ids are in the order of time: none that was made later is looked at), ended_jobs_pkey,
--   runner_sessions_job, retention_pkey.
WITH clock AS MATERIALIZED (
    SELECT coalesce($4::timestamptz, now()) AS now
), before AS MATERIALIZED (
    SELECT clock.now - make_interval(secs => $1) AS ended, clock.now - make_interval(secs => greatest($1, $2)) AS failed,
           (lpad(to_hex((extract(epoch FROM clock.now - make_interval(secs => $1)) * 1000)::bigint), 12, '0')
            || repeat('0', 20))::uuid AS id
    FROM clock
), old AS MATERIALIZED (
    SELECT e.id FROM before CROSS JOIN :"schema".runner_jobs AS r JOIN :"schema".ended_jobs AS e ON e.id = r.job_id
    WHERE r.job_id < (SELECT before.id FROM before) AND r.usage_recorded
      AND e.finished_at < CASE e.state WHEN 'failed' THEN before.failed ELSE before.ended END
      AND NOT EXISTS (SELECT FROM :"schema".retention AS k WHERE k.kind = e.kind)
    ORDER BY r.job_id LIMIT $3
    FOR UPDATE OF e SKIP LOCKED
), removed AS (
    DELETE FROM :"schema".ended_jobs AS e USING old WHERE e.id = old.id RETURNING e.id
), facts AS (
    DELETE FROM :"schema".runner_jobs AS r USING removed WHERE r.job_id = removed.id
), sessions AS (
    DELETE FROM :"schema".runner_sessions AS s USING removed WHERE s.job_id = removed.id
)
SELECT count(*) AS removed FROM removed
