-- Writes the ends of jobs, each in a commit of its own; see the procedure in 0008_ends.sql. Outside transactions only.
-- Parameters: $1 ids uuid[], $2 epochs bigint[], $3 outcomes text[] (done|failed|cancelled), $4 errors text[],
--   $5 results jsonb[], $6 progress jsonb[], $7 how the tries ended text[], $8 now timestamptz or null.
-- Rows: one: written uuid[], those that were not refused; batches uuid[], the batches that they belong to.
-- Locks: one row after the other, each until its commit.
-- Index: open_jobs_pkey.
CALL :"schema".finish_each($1, $2, $3, $4, $5, $6, $7, $8)
