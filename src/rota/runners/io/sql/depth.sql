-- How many runner jobs wait and run, by target and job type: the scaling signal, and a metric.
-- Parameters: none.
-- Rows: target, job_type, state (queued or leased), jobs.
-- Locks: none.
-- Index: open_jobs_runner_next, open_jobs_runner_held.
SELECT o.place AS target, o.kind AS job_type, 'queued' AS state, count(*) AS jobs FROM :"schema".open_jobs AS o
WHERE o.state = 'queued' AND o.place <> 'worker' GROUP BY o.place, o.kind
UNION ALL
SELECT o.place, o.kind, 'leased', count(*) FROM :"schema".open_jobs AS o
WHERE o.state = 'leased' AND o.place <> 'worker' GROUP BY o.place, o.kind
