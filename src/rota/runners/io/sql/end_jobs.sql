-- Writes the end of runner jobs: done, failed, cancelled or expired. Fenced by epoch (I3), and what ended is told to
-- whoever waits for it. The failure class is the platform's own finding; what a runner claims stands beside it (I11).
-- Parameters: $1 ids uuid[] (ascending), $2 epochs bigint[] (null: a queued job), $3 states text[], $4 errors text[],
--   $5 results jsonb[], $6 failure classes text[], $7 failure codes text[], $8 retryable boolean[], $9 classes as claimed
--   text[], $10 boolean: only where the lease has run out, $11 now timestamptz or null.
-- Rows: id, state of each job that was written; one that does not come back was refused: its lease is lost, or holds.
-- Locks: the rows of the jobs table, in the order of the ids, then those of the facts and the sessions.
-- Index: open_jobs_pkey (BETWEEN: see finish.sql of the queue), runner_jobs_pkey, runner_sessions_job.
WITH given AS MATERIALIZED (
    SELECT g.*, coalesce($11::timestamptz, now()) AS now
    FROM unnest($1::uuid[], $2::bigint[], $3::text[], $4::text[], $5::jsonb[], $6::text[], $7::text[], $8::boolean[],
                $9::text[])
         AS g(id, epoch, outcome, error, given_result, failure_class, code, retryable, claimed)
), ended AS (
    DELETE FROM :"schema".open_jobs AS j USING given
    WHERE j.id BETWEEN given.id AND given.id AND j.place || '' <> 'worker'
      AND (given.epoch IS NULL AND j.state || '' = 'queued'
           OR j.lease_epoch = given.epoch AND j.state || '' = 'leased')
      AND NOT ($10::boolean AND j.lease_until >= given.now)
    RETURNING j.*, given.outcome, given.error, given.given_result, given.failure_class, given.code, given.retryable,
              given.claimed, given.now
), kept AS (
    INSERT INTO :"schema".ended_jobs AS e
        (id, run_after, created_at, started_at, heartbeat_at, finished_at, lease_epoch, priority, tries, max_tries,
         kind, state, place, tenant, dedupe_key, dedupe_scope, leased_by, last_error, execution_id, trace, payload,
         progress, result, parent_id, batch_id)
    SELECT id, run_after, created_at, started_at, heartbeat_at, now, lease_epoch, priority, tries, max_tries,
           kind, outcome, place, tenant, dedupe_key, dedupe_scope, leased_by, coalesce(error, last_error), execution_id,
           trace, payload, progress, given_result, parent_id, batch_id
    FROM ended
), facts AS (
    UPDATE :"schema".runner_jobs AS r
    SET failure_class = ended.failure_class, failure_code = ended.code, failure_retryable = ended.retryable,
        claimed_class = ended.claimed
    FROM ended WHERE r.job_id = ended.id
), closed AS (
    UPDATE :"schema".runner_sessions AS s SET closed_at = ended.now, closed_reason = coalesce(ended.code, ended.outcome)
    FROM ended WHERE s.job_id = ended.id AND s.closed_at IS NULL
), noted AS (
    INSERT INTO :"schema".runner_audit (at, org_id, event, runner_id, job_id, detail)
    SELECT now, tenant, 'job ' || outcome, substr(leased_by, 8), id, coalesce(code, failure_class) FROM ended
), told AS (
    SELECT pg_notify(:'schema' || '_runners', 'ended:' || ended.id) FROM ended
)
SELECT ended.id, ended.outcome AS state, (SELECT count(*) FROM told) AS told FROM ended
