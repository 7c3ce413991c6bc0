-- What waits, by target, organisation and job type: the look that makes up for lost notifications.
-- Parameters: $1 how many groups at most integer.
-- Rows: target, org_id, job_type, jobs.
-- Locks: none.
-- Index: open_jobs_runner_next.
SELECT o.place AS target, o.tenant AS org_id, o.kind AS job_type, count(*) AS jobs FROM :"schema".open_jobs AS o
WHERE o.state = 'queued' AND o.place <> 'worker' GROUP BY o.place, o.tenant, o.kind ORDER BY 1, 2, 3 LIMIT $1
