-- Some devices by their ids, for what they prove.
-- Parameters: $1 device ids text[].
-- Rows: of each that is known: the device's columns, and org_disabled: whether its organisation is.
-- Locks: none.
-- Index: runner_devices_pkey, disabled_organisations_pkey.
SELECT d.device_id, d.org_id, d.name, d.public_key, d.previous_key, d.previous_until, d.capabilities, d.created_at,
       d.seen_at, d.revoked_at,
       EXISTS (SELECT FROM :"schema".disabled_organisations AS x WHERE x.org_id = d.org_id) AS org_disabled
FROM :"schema".runner_devices AS d WHERE d.device_id = ANY ($1::text[])
