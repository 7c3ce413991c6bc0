-- Removes what no one needs any more: old nonces, codes long over, rejections, credentials out of use, facts and sessions
-- of jobs whose retention is over, and replicas that were not seen for a day.
-- Parameters: $1 how long a nonce is kept, seconds float8, $2 how many facts at most integer, $3 now timestamptz or null.
-- Rows: one: nonces, facts: how many went.
-- Locks: the rows that go.
-- Index: runner_nonces_seen, runner_jobs_pkey, runner_sessions_job, open_jobs_pkey, ended_jobs_pkey.
WITH clock AS MATERIALIZED (
    SELECT coalesce($3::timestamptz, now()) AS now
), nonces AS (
    DELETE FROM :"schema".runner_nonces AS n WHERE n.seen_at < (SELECT clock.now FROM clock) - make_interval(secs => $1)
    RETURNING 1
), codes AS (
    DELETE FROM :"schema".pairing_codes AS c WHERE c.expires_at < (SELECT clock.now FROM clock) - interval '1 day'
), rejections AS (
    DELETE FROM :"schema".runner_rejections AS x WHERE x.until < (SELECT clock.now FROM clock)
), credentials AS (
    DELETE FROM :"schema".pool_credentials AS p WHERE p.expires_at < (SELECT clock.now FROM clock)
), replicas AS (
    DELETE FROM :"schema".gateways AS g WHERE g.seen_at < (SELECT clock.now FROM clock) - interval '1 day'
), gone AS MATERIALIZED (
    SELECT r.job_id FROM :"schema".runner_jobs AS r
    WHERE NOT EXISTS (SELECT FROM :"schema".open_jobs AS o WHERE o.id = r.job_id)
      AND NOT EXISTS (SELECT FROM :"schema".ended_jobs AS e WHERE e.id = r.job_id)
      AND r.created_at < (SELECT clock.now FROM clock) - interval '1 hour'
    LIMIT $2
), facts AS (
    DELETE FROM :"schema".runner_jobs AS r USING gone WHERE r.job_id = gone.job_id RETURNING 1
), sessions AS (
    DELETE FROM :"schema".runner_sessions AS s USING gone WHERE s.job_id = gone.job_id
)
SELECT (SELECT count(*) FROM nonces) AS nonces, (SELECT count(*) FROM facts) AS facts
