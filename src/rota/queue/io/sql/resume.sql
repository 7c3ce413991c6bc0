-- Takes back a pause.
-- Parameters: $1 scope text, $2 name text, $3 now timestamptz or null.
-- Rows: one, if it was paused until now: scope, name, note, paused_by, paused_at, until.
-- Locks: the removed row.
-- Index: pauses_pkey.
WITH removed AS (
    DELETE FROM :"schema".pauses AS p WHERE p.scope = $1 AND p.name = $2
    RETURNING p.scope, p.name, p.note, p.paused_by, p.paused_at, p.until
)
SELECT * FROM removed WHERE removed.until IS NULL OR removed.until > coalesce($3::timestamptz, now())
