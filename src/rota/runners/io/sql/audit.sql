-- What happened to an organisation's devices and jobs, newest first.
-- Parameters: $1 org_id text or null (the pool), $2 below this id bigint or null, $3 how many at most integer.
-- Rows: id, at, org_id, event, runner_id, job_id, detail.
-- Locks: none.
-- Index: runner_audit_org.
SELECT a.id, a.at, a.org_id, a.event, a.runner_id, a.job_id, a.detail FROM :"schema".runner_audit AS a
WHERE a.org_id IS NOT DISTINCT FROM $1::text AND a.id < coalesce($2::bigint, 9223372036854775807)
ORDER BY a.id DESC LIMIT $3
