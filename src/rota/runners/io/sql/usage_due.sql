-- Runner jobs that have ended and whose usage is not recorded.
-- Parameters: $1 how many at most integer.
-- Rows: id, org_id, target, job_type, spec, outcome, failure_class, ran: whether a runner had accepted it.
-- Locks: none.
-- Index: runner_jobs_unrecorded, ended_jobs_pkey.
SELECT e.id, e.tenant AS org_id, e.place AS target, e.kind AS job_type, e.payload::text AS spec, e.state AS outcome,
       r.failure_class, r.accepted_at IS NOT NULL AS ran
FROM :"schema".runner_jobs AS r
JOIN :"schema".ended_jobs AS e ON e.id = r.job_id
WHERE NOT r.usage_recorded
ORDER BY r.job_id
LIMIT $1
