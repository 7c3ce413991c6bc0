-- Adds one job inside the caller's transaction, by the function that serves every language.
-- Parameters: $1 kind text, $2 payload jsonb, $3 priority integer, $4 tenant text, $5 dedupe_key text,
--   $6 dedupe_scope text, $7 run_after timestamptz, $8 delay_s float8, $9 max_tries integer, $10 trace text,
--   $11 parent_id text, $12 batch_id text (uuids; not every library knows the type),
--   $13 dedupe_window_s float8, $14 now timestamptz or null.
-- Rows: one: id, created (false: another job holds the key, and id is that job's).
-- Locks: the new row; waits for an uncommitted job with the same key.
-- Index: the unique keys of open_jobs, forever_keys and throttle_keys.
SELECT job.id, job.created
FROM :"schema".enqueue(
    CAST($1 AS text), CAST(CAST($2 AS text) AS jsonb), CAST($3 AS integer), CAST($4 AS text), CAST($5 AS text),
    CAST($6 AS text), CAST($7 AS timestamptz), CAST($8 AS double precision), CAST($9 AS integer), CAST($10 AS text),
    NULL, NULL, CAST(CAST($11 AS text) AS uuid), CAST(CAST($12 AS text) AS uuid), CAST($13 AS double precision),
    CAST($14 AS timestamptz)) AS job
