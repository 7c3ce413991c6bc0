-- Devices, oldest first.
-- Parameters: $1 org_id text or null (all), $2 device_id text or null (all), $3 how many at most integer.
-- Rows: the devices' columns, and org_disabled of each.
-- Locks: none.
-- Index: runner_devices_pkey, runner_devices_org, disabled_organisations_pkey.
SELECT d.device_id, d.org_id, d.name, d.public_key, d.previous_key, d.previous_until, d.capabilities, d.created_at,
       d.seen_at, d.revoked_at,
       EXISTS (SELECT FROM :"schema".disabled_organisations AS x WHERE x.org_id = d.org_id) AS org_disabled
FROM :"schema".runner_devices AS d
WHERE ($1::text IS NULL OR d.org_id = $1) AND ($2::text IS NULL OR d.device_id = $2)
ORDER BY d.created_at, d.device_id LIMIT $3
