-- Holds back the jobs of a kind, of a tenant, or all. Pausing again replaces the note and the end.
-- Parameters: $1 scope text (kind|tenant|all), $2 name text (empty for all), $3 note text, $4 paused_by text,
--   $5 for_s float8 (null: until somebody resumes), $6 now timestamptz or null.
-- Rows: none.
-- Locks: the row of the pause; pauses that are over are removed.
-- Index: pauses_pkey; the table is small.
WITH clock AS MATERIALIZED (
    SELECT coalesce($6::timestamptz, now()) AS now
), over AS (
    DELETE FROM :"schema".pauses AS p USING clock WHERE p.until <= clock.now AND (p.scope, p.name) <> ($1, $2)
)
INSERT INTO :"schema".pauses AS p (scope, name, note, paused_by, paused_at, until)
SELECT $1, $2, $3, $4, clock.now, clock.now + make_interval(secs => $5) FROM clock
ON CONFLICT (scope, name) DO UPDATE
    SET note = EXCLUDED.note, paused_by = EXCLUDED.paused_by, until = EXCLUDED.until,
        paused_at = CASE WHEN p.until <= EXCLUDED.paused_at THEN EXCLUDED.paused_at ELSE p.paused_at END
