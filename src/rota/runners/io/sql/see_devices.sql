-- Devices connected: what they say they can do, and when.
-- Parameters: $1 device ids text[], each once, $2 capabilities jsonb[], $3 now timestamptz or null.
-- Rows: device_id of each that is known.
-- Locks: their rows, in the order of the ids.
-- Index: runner_devices_pkey.
WITH known AS MATERIALIZED (
    SELECT d.device_id FROM :"schema".runner_devices AS d
    WHERE d.device_id = ANY ($1::text[]) ORDER BY d.device_id FOR UPDATE
)
UPDATE :"schema".runner_devices AS d SET capabilities = g.capabilities, seen_at = coalesce($3::timestamptz, now())
FROM unnest($1::text[], $2::jsonb[]) AS g(device_id, capabilities) JOIN known ON known.device_id = g.device_id
WHERE d.device_id = g.device_id
RETURNING d.device_id
