-- Keeps an event for an organisation's audit trail.
-- Parameters: $1 org_id text or null (the pool), $2 event text, $3 runner_id text or null, $4 job id uuid or null,
--   $5 detail text or null, $6 now timestamptz or null.
-- Rows: none.
-- Locks: none.
-- Index: none.
INSERT INTO :"schema".runner_audit (at, org_id, event, runner_id, job_id, detail)
VALUES (coalesce($6::timestamptz, now()), $1, $2, $3, $4, $5)
