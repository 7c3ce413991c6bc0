-- Reads the passes, each with its open run.
-- Parameters: $1 this pass alone text or null, $2 now timestamptz or null.
-- Rows: the columns of passes without created_at; open_id, open_state, open_run_after, open_tries (null: no run is
--   open), paused boolean, now; by name.
-- Locks: none.
-- Index: open_jobs_open_key, one look for each pass.
WITH clock AS MATERIALIZED (
    SELECT coalesce($2::timestamptz, now()) AS now
)
SELECT p.name, p.schedule, p.priority, p.due_at, p.extra, p.missing_since, p.removed_at,
       run.id AS open_id, run.state AS open_state, run.run_after AS open_run_after, run.tries AS open_tries,
       EXISTS (SELECT FROM :"schema".pauses AS held
               WHERE (held.scope = 'all' OR held.scope = 'kind' AND held.name = p.name)
                 AND (held.until IS NULL OR held.until > clock.now)) AS paused,
       clock.now
FROM :"schema".passes AS p CROSS JOIN clock LEFT JOIN LATERAL (
    SELECT o.id, o.state, o.run_after, o.tries FROM :"schema".open_jobs AS o
    WHERE o.dedupe_scope = 'open' AND o.dedupe_key = 'pass:' || p.name
) AS run ON true
WHERE $1::text IS NULL OR p.name = $1
ORDER BY p.name
