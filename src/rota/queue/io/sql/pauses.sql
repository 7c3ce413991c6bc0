-- Reads the pauses that hold now.
-- Parameters: $1 now timestamptz or null.
-- Rows: scope, name, note, paused_by, paused_at, until; by scope and name.
-- Locks: none.
-- Index: none; the table holds one row for each pause.
SELECT p.scope, p.name, p.note, p.paused_by, p.paused_at, p.until
FROM :"schema".pauses AS p
WHERE p.until IS NULL OR p.until > coalesce($1::timestamptz, now())
ORDER BY p.scope, p.name
