-- Registers a device's new key; the one before is good for a while.
-- Parameters: $1 device_id text, $2 public key bytea, $3 overlap_s float8, $4 now timestamptz or null.
-- Rows: device_id, org_id; none if it is unknown or revoked.
-- Locks: its row.
-- Index: runner_devices_pkey.
WITH rotated AS (
    UPDATE :"schema".runner_devices AS d
    SET previous_key = d.public_key, public_key = $2,
        previous_until = coalesce($4::timestamptz, now()) + make_interval(secs => $3)
    WHERE d.device_id = $1 AND d.revoked_at IS NULL AND d.public_key <> $2
    RETURNING d.device_id, d.org_id
), noted AS (
    INSERT INTO :"schema".runner_audit (at, org_id, event, runner_id)
    SELECT coalesce($4::timestamptz, now()), rotated.org_id, 'key rotated', rotated.device_id FROM rotated
)
SELECT rotated.device_id, rotated.org_id FROM rotated
