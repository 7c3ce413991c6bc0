-- One runner job, open or ended, by its id or by its idempotency key.
-- Parameters: $1 id uuid or null, $2 idempotency key text or null.
-- Rows: one or none: the job's columns, and session_id of its session of this or the last try.
-- Locks: none.
-- Index: runner_jobs_pkey, runner_jobs_key, open_jobs_pkey, ended_jobs_pkey.
SELECT j.id, j.place AS target, j.tenant AS org_id, j.kind AS job_type, j.payload AS spec, j.state, j.priority,
       j.lease_epoch AS epoch, j.lease_until, j.tries, j.max_tries, j.last_error AS error, j.result, j.progress,
       j.created_at, j.started_at, j.finished_at, j.cancel_asked_at, r.idempotency_key, r.execution_id,
       r.runtime_digest, r.fontset_version, r.output_bytes_max, r.timeout_s, r.idle_s, r.one_shot, r.runner_id,
       r.gateway_instance, r.session_id, r.accepted_at, r.deadline_at, r.cancel_reason, r.failure_class, r.failure_code,
       r.failure_retryable, r.claimed_class
FROM :"schema".runner_jobs AS r JOIN :"schema".jobs AS j ON j.id = r.job_id
WHERE r.job_id = coalesce($1::uuid, (SELECT k.job_id FROM :"schema".runner_jobs AS k WHERE k.idempotency_key = $2::text))
