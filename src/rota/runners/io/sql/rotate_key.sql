-- Registers a device's new key; the one before is good for a while longer. Asking again for the same one changes nothing,
-- so that a device whose answer was lost may ask again. A key that is on its way out cannot bring in another.
-- Parameters: $1 device_id text, $2 public key bytea, $3 overlap_s float8, $4 the key that asked bytea or null (an
--   operator did), $5 now timestamptz or null.
-- Rows: device_id, org_id, previous_until; none if it is unknown or revoked, or the key that asked is not good.
-- Locks: its row.
-- Index: runner_devices_pkey.
WITH clock AS MATERIALIZED (
    SELECT coalesce($5::timestamptz, now()) AS now
), held AS MATERIALIZED (
    SELECT d.device_id, d.org_id, d.public_key, d.previous_until FROM :"schema".runner_devices AS d CROSS JOIN clock
    WHERE d.device_id = $1 AND d.revoked_at IS NULL
      AND ($4::bytea IS NULL OR d.public_key = $4
           OR d.public_key = $2 AND d.previous_key = $4 AND d.previous_until > clock.now)
    FOR UPDATE OF d
), rotated AS (
    UPDATE :"schema".runner_devices AS d
    SET previous_key = held.public_key, public_key = $2,
        previous_until = clock.now + make_interval(secs => $3)
    FROM held CROSS JOIN clock WHERE d.device_id = held.device_id AND held.public_key <> $2
    RETURNING d.device_id, d.org_id, d.previous_until
), noted AS (
    INSERT INTO :"schema".runner_audit (at, org_id, event, runner_id, detail)
    SELECT clock.now, rotated.org_id, 'key rotated', rotated.device_id,
           CASE WHEN $4::bytea IS NULL THEN 'by an operator' ELSE 'by the device' END
    FROM rotated CROSS JOIN clock
)
SELECT rotated.device_id, rotated.org_id, rotated.previous_until FROM rotated
UNION ALL
SELECT held.device_id, held.org_id, held.previous_until FROM held WHERE held.public_key = $2
