-- Which of these devices are revoked, or unknown.
-- Parameters: $1 device ids text[].
-- Rows: device_id of each.
-- Locks: none.
-- Index: runner_devices_pkey.
SELECT given.device_id FROM unnest($1::text[]) AS given(device_id)
WHERE NOT EXISTS (SELECT FROM :"schema".runner_devices AS d
                  WHERE d.device_id = given.device_id AND d.revoked_at IS NULL)
