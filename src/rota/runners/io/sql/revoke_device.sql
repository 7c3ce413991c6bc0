-- Revokes a device for ever and tells the gateways, which close its connection and give its jobs up.
-- Parameters: $1 device_id text, $2 now timestamptz or null.
-- Rows: device_id, org_id, revoked_at; none if it is unknown.
-- Locks: its row.
-- Index: runner_devices_pkey.
WITH revoked AS (
    UPDATE :"schema".runner_devices AS d SET revoked_at = coalesce(d.revoked_at, $2::timestamptz, now())
    WHERE d.device_id = $1
    RETURNING d.device_id, d.org_id, d.revoked_at
), noted AS (
    INSERT INTO :"schema".runner_audit (at, org_id, event, runner_id)
    SELECT coalesce($2::timestamptz, now()), revoked.org_id, 'device revoked', revoked.device_id FROM revoked
)
SELECT revoked.device_id, revoked.org_id, revoked.revoked_at,
       pg_notify(:'schema' || '_runners', 'revoked:' || revoked.device_id)
FROM revoked
