-- A device connected: what it says it can do, and when.
-- Parameters: $1 device_id text, $2 capabilities jsonb, $3 now timestamptz or null.
-- Rows: device_id; none if it is unknown.
-- Locks: its row.
-- Index: runner_devices_pkey.
UPDATE :"schema".runner_devices AS d SET capabilities = $2, seen_at = coalesce($3::timestamptz, now())
WHERE d.device_id = $1
RETURNING d.device_id
