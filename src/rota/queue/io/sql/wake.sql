-- Wakes the workers that wait for jobs of these kinds, for jobs that were added without the enqueue functions.
-- Parameters: $1 kinds text[], $2 run_afters timestamptz[]: when the first job of each kind is due, null for now.
-- Rows: one, without meaning.
-- Locks: none; a NOTIFY at commit if somebody waits.
-- Index: none; the table of those who wait is tiny.
SELECT :"schema".wake(array_agg(job.kind))
FROM unnest(CAST($1 AS text[]), CAST($2 AS timestamptz[])) AS job(kind, run_after)
WHERE job.run_after IS NULL OR job.run_after <= now()
