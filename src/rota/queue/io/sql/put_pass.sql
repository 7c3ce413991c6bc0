-- Writes a pass, and sees that a run of it is open: one that waits for its due time is moved, and where none is open
-- one is added. A run that has begun, that is due, or that waits for something else stays as it is.
-- Parameters: $1 name text, $2 schedule text, $3 priority integer, $4 due_at timestamptz, $5 extra boolean,
--   $6 the schedule text and $7 the due_at timestamptz that this was decided on (null: there was no such pass),
--   $8 now timestamptz or null.
-- Rows: one: name, if the pass was still as it was seen; else none, and nothing is written.
-- Locks: the row of the pass, then its run.
-- Index: passes_pkey, open_jobs_open_key.
WITH clock AS MATERIALIZED (
    SELECT coalesce($8::timestamptz, now()) AS now
), put AS (
    INSERT INTO :"schema".passes AS p (name, schedule, priority, due_at, created_at, extra)
    SELECT $1, $2, $3, $4::timestamptz, clock.now, $5 FROM clock
    ON CONFLICT (name) DO UPDATE
        SET schedule = EXCLUDED.schedule, priority = EXCLUDED.priority, due_at = EXCLUDED.due_at,
            extra = EXCLUDED.extra, missing_since = NULL, removed_at = NULL
        WHERE p.schedule = $6::text AND p.due_at = $7::timestamptz
    RETURNING p.name, p.due_at, p.priority
), moved AS (
    UPDATE :"schema".open_jobs AS j
    SET run_after = put.due_at, priority = put.priority, payload = jsonb_build_object('due_at', to_char(put.due_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'))
    FROM put CROSS JOIN clock
    WHERE j.dedupe_scope = 'open' AND j.dedupe_key = 'pass:' || put.name
      AND j.state = 'queued' AND j.run_after = $7::timestamptz AND j.run_after > clock.now
), added AS (
    -- Answers with the open run, where there is one.
    SELECT job.id
    FROM put CROSS JOIN clock CROSS JOIN LATERAL :"schema".enqueue(
        put.name, jsonb_build_object('due_at', to_char(put.due_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')), put.priority, dedupe_key => 'pass:' || put.name,
        dedupe_scope => 'open', run_after => put.due_at, at => clock.now) AS job
)
SELECT put.name, (SELECT count(*) FROM added) AS runs FROM put
