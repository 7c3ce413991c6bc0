-- Runner jobs that somebody wants to stop: what a gateway looks at now and then, in case a notification was lost.
-- Parameters: $1 gateway instance text.
-- Rows: id, epoch, reason of each that this gateway assigned or resumed last.
-- Locks: none.
-- Index: open_jobs_cancel, runner_jobs_pkey.
SELECT o.id, o.lease_epoch AS epoch, coalesce(r.cancel_reason, 'user') AS reason
FROM :"schema".open_jobs AS o JOIN :"schema".runner_jobs AS r ON r.job_id = o.id
WHERE o.cancel_asked_at IS NOT NULL AND o.place <> 'worker' AND o.state || '' = 'leased' AND r.gateway_instance = $1
