-- Gives a device another name.
-- Parameters: $1 device_id text, $2 name text, $3 now timestamptz or null.
-- Rows: device_id, org_id; none if it is unknown.
-- Locks: its row.
-- Index: runner_devices_pkey.
WITH named AS (
    UPDATE :"schema".runner_devices AS d SET name = $2 WHERE d.device_id = $1 RETURNING d.device_id, d.org_id
), noted AS (
    INSERT INTO :"schema".runner_audit (at, org_id, event, runner_id, detail)
    SELECT coalesce($3::timestamptz, now()), named.org_id, 'device renamed', named.device_id, $2 FROM named
)
SELECT named.device_id, named.org_id FROM named
