-- Makes a run of a pass due now because a person asks; the run that is due by its schedule still comes.
-- Parameters: $1 name text, $2 now timestamptz or null.
-- Rows: at most one: id, state (queued: due now; leased: a run is under way), extra boolean; none: no such pass.
-- Locks: the row of the pass, then its run.
-- Index: passes_pkey, open_jobs_open_key.
WITH clock AS MATERIALIZED (
    SELECT coalesce($2::timestamptz, now()) AS now
), pass AS MATERIALIZED (
    SELECT p.name, p.priority, p.due_at FROM :"schema".passes AS p
    WHERE p.name = $1 AND p.removed_at IS NULL FOR UPDATE
), run AS MATERIALIZED (
    SELECT o.id, o.state, o.run_after FROM pass CROSS JOIN LATERAL (
        SELECT j.id, j.state, j.run_after FROM :"schema".open_jobs AS j
        WHERE j.dedupe_scope = 'open' AND j.dedupe_key = 'pass:' || pass.name FOR UPDATE
    ) AS o
), moved AS (
    UPDATE :"schema".open_jobs AS j
    SET run_after = clock.now, payload = jsonb_build_object('due_at', to_char(clock.now AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'))
    FROM run CROSS JOIN clock
    WHERE j.id = run.id AND run.state = 'queued' AND run.run_after > clock.now
    RETURNING j.id
), added AS MATERIALIZED (
    SELECT job.id
    FROM pass CROSS JOIN clock CROSS JOIN LATERAL :"schema".enqueue(
        pass.name, jsonb_build_object('due_at', to_char(clock.now AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')), pass.priority, dedupe_key => 'pass:' || pass.name,
        dedupe_scope => 'open', run_after => clock.now, at => clock.now) AS job
    WHERE NOT EXISTS (SELECT FROM run)
), noted AS (
    UPDATE :"schema".passes AS p SET extra = true
    FROM pass CROSS JOIN clock
    WHERE p.name = pass.name AND p.due_at > clock.now
      AND (EXISTS (SELECT FROM moved) OR EXISTS (SELECT FROM added))
    RETURNING p.name
), woken AS MATERIALIZED (
    SELECT count(:"schema".wake(ARRAY[pass.name], clock.now)::text) AS told
    FROM pass CROSS JOIN clock WHERE EXISTS (SELECT FROM moved)
)
SELECT coalesce(run.id, added.id) AS id, coalesce(run.state, 'queued') AS state,
       EXISTS (SELECT FROM noted) AS extra, woken.told
FROM pass LEFT JOIN run ON true LEFT JOIN added ON true CROSS JOIN woken
