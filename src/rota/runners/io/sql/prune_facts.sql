-- Removes the facts and sessions of runner jobs that somebody else has removed, as workers do, a piece at a time.
-- Parameters: $1 how many at most integer, $2 now timestamptz or null.
-- Rows: one: removed: how many jobs' facts went.
-- Locks: the rows that go.
-- Index: runner_jobs_pkey, runner_sessions_job, open_jobs_pkey, ended_jobs_pkey.
WITH gone AS MATERIALIZED (
    SELECT r.job_id FROM :"schema".runner_jobs AS r
    WHERE NOT EXISTS (SELECT FROM :"schema".open_jobs AS o WHERE o.id = r.job_id)
      AND NOT EXISTS (SELECT FROM :"schema".ended_jobs AS e WHERE e.id = r.job_id)
      AND r.created_at < coalesce($2::timestamptz, now()) - interval '1 hour'
    LIMIT $1
), facts AS (
    DELETE FROM :"schema".runner_jobs AS r USING gone WHERE r.job_id = gone.job_id RETURNING 1
), sessions AS (
    DELETE FROM :"schema".runner_sessions AS s USING gone WHERE s.job_id = gone.job_id
)
SELECT count(*) AS removed FROM facts
