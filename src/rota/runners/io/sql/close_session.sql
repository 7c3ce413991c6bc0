-- Closes a session while its job goes on to its end: no op is served in it any more.
-- Parameters: $1 session_id uuid, $2 reason text, $3 now timestamptz or null.
-- Rows: session_id; none if it is closed, or unknown.
-- Locks: the row.
-- Index: runner_sessions_pkey.
UPDATE :"schema".runner_sessions AS s SET closed_at = coalesce($3::timestamptz, now()), closed_reason = $2
WHERE s.session_id = $1 AND s.closed_at IS NULL
RETURNING s.session_id
