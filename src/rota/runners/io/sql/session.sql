-- One session with its job, for whoever wants to run an op in it.
-- Parameters: $1 session_id uuid, $2 now timestamptz or null.
-- Rows: one or none: session_id, job_id, epoch, execution_id, runner_id, gateway_instance, closed_at, closed_reason,
--   state (of the job; null if it is gone), job_type, cancel_asked, held (its lease holds), timeout_s, and the address of
--   the replica (null: it was not heard of).
-- Locks: none.
-- Index: runner_sessions_pkey, open_jobs_pkey, ended_jobs_pkey, runner_jobs_pkey, gateways_pkey.
SELECT s.session_id, s.job_id, s.lease_epoch AS epoch, s.execution_id, s.runner_id, s.gateway_instance, s.closed_at,
       s.closed_reason, j.state, j.kind AS job_type, j.cancel_asked_at IS NOT NULL AS cancel_asked,
       coalesce(j.state = 'leased' AND j.lease_epoch = s.lease_epoch
                AND j.lease_until > coalesce($2::timestamptz, now()), false) AS held,
       r.timeout_s, g.address
FROM :"schema".runner_sessions AS s
LEFT JOIN :"schema".jobs AS j ON j.id = s.job_id
LEFT JOIN :"schema".runner_jobs AS r ON r.job_id = s.job_id
LEFT JOIN :"schema".gateways AS g ON g.instance = s.gateway_instance
WHERE s.session_id = $1
