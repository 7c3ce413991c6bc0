-- Gives a job numbers for staging keys; none is given twice in its life, whatever epoch or session asks.
-- Parameters: $1 job id uuid, $2 how many bigint.
-- Rows: first, the first of them; none if there is no such job.
-- Locks: the row.
-- Index: runner_jobs_pkey.
UPDATE :"schema".runner_jobs AS r SET staging_next = r.staging_next + $2 WHERE r.job_id = $1
RETURNING r.staging_next - $2 AS first
