-- Adds many jobs inside the caller's transaction; element n of each array is job n, a null array its default.
-- Parameters: $1 kinds text[], $2 payloads text[] (JSON), $3 priorities integer[], $4 tenants text[],
--   $5 dedupe_keys text[], $6 dedupe_scopes text[], $7 run_afters timestamptz[], $8 delays_s float8[],
--   $9 max_tries integer[], $10 traces text[], $11 parent_ids text[],
--   $12 batch_ids text[] (uuids), $13 dedupe_windows_s float8[], $14 now timestamptz or null.
-- Rows: id, created for each job, in the order given.
-- Locks: the new rows; waits for uncommitted jobs with the same keys, in the order of the keys.
-- Index: the unique keys of open_jobs, forever_keys and throttle_keys.
SELECT job.id, job.created
FROM :"schema".enqueue_many(
    CAST($1 AS text[]), CAST(CAST($2 AS text[]) AS jsonb[]), CAST($3 AS integer[]), CAST($4 AS text[]),
    CAST($5 AS text[]), CAST($6 AS text[]), CAST($7 AS timestamptz[]), CAST($8 AS double precision[]),
    CAST($9 AS integer[]), CAST($10 AS text[]), NULL, NULL, CAST(CAST($11 AS text[]) AS uuid[]),
    CAST(CAST($12 AS text[]) AS uuid[]), CAST($13 AS double precision[]),
    CAST($14 AS timestamptz)) AS job
ORDER BY job.number
