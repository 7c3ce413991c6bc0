-- Some devices by their ids, for their hellos.
-- Parameters: $1 device ids text[].
-- Rows: of each that is known: the device's columns.
-- Locks: none.
-- Index: runner_devices_pkey.
SELECT d.device_id, d.org_id, d.name, d.public_key, d.previous_key, d.previous_until, d.capabilities, d.created_at,
       d.seen_at, d.revoked_at
FROM :"schema".runner_devices AS d WHERE d.device_id = ANY ($1::text[])
