-- Asks runner jobs that run to stop, once: the gateway that holds the runner is told, and so is whoever waits. A job
-- that is still queued is only named: end it.
-- Parameters: $1 ids uuid[] (ascending; null: all of the execution), $2 execution_id text or null, $3 reason text (of
--   the protocol's cancel), $4 text for people, $5 now timestamptz or null.
-- Rows: id, state (queued or leased), epoch of each open job among them.
-- Locks: the rows of the jobs table, in the order of the ids, then those of the facts.
-- Index: runner_jobs_pkey, runner_jobs_execution, open_jobs_pkey.
WITH asked AS MATERIALIZED (
    SELECT r.job_id AS id FROM :"schema".runner_jobs AS r WHERE r.job_id = ANY ($1::uuid[])
    UNION ALL
    SELECT r.job_id FROM :"schema".runner_jobs AS r WHERE $1 IS NULL AND r.execution_id = $2::text
    ORDER BY 1
), held AS MATERIALIZED (
    SELECT asked.id, locked.state, locked.lease_epoch
    FROM asked CROSS JOIN LATERAL (
        SELECT o.state, o.lease_epoch FROM :"schema".open_jobs AS o
        WHERE o.id = asked.id AND o.place || '' <> 'worker' FOR UPDATE
    ) AS locked
), marked AS (
    UPDATE :"schema".open_jobs AS j
    SET cancel_asked_at = coalesce(j.cancel_asked_at, $5::timestamptz, now()),
        last_error = CASE WHEN j.cancel_asked_at IS NULL THEN $4 ELSE j.last_error END
    FROM held WHERE j.id BETWEEN held.id AND held.id AND held.state = 'leased'
), facts AS (
    UPDATE :"schema".runner_jobs AS r SET cancel_reason = coalesce(r.cancel_reason, $3::text)
    FROM held WHERE r.job_id = held.id AND held.state = 'leased'
), told AS (
    SELECT pg_notify(:'schema' || '_runners', 'cancel:' || held.id) FROM held WHERE held.state = 'leased'
)
SELECT held.id, held.state, held.lease_epoch AS epoch, (SELECT count(*) FROM told) AS told FROM held
