-- One device, for its hello.
-- Parameters: $1 device_id text.
-- Rows: one or none: the device's columns.
-- Locks: none.
-- Index: runner_devices_pkey.
SELECT d.device_id, d.org_id, d.name, d.public_key, d.previous_key, d.previous_until, d.capabilities, d.created_at,
       d.seen_at, d.revoked_at
FROM :"schema".runner_devices AS d WHERE d.device_id = $1
