-- Pairs a device with a one-time code: counts the attempt, and if the code is right, unused, in time and has attempts
-- left, registers the key. A code is used once, whoever comes at the same moment; the device that used it, known by its
-- key, may ask again, so that one whose answer was lost is not lost itself.
-- Parameters: $1 selector text, $2 hash bytea, $3 device_id text, $4 public key bytea, $5 name text or null (the code's),
--   $6 attempts that a code allows integer, $7 now timestamptz or null.
-- Rows: one if there is such a code: device_id, verdict (paired, again, wrong, used, expired or locked).
-- Locks: the code's row.
-- Index: pairing_codes_pkey, runner_devices_pkey.
WITH code AS MATERIALIZED (
    SELECT c.selector, c.org_id, c.device_id, coalesce($5::text, c.name) AS name, coalesce($7::timestamptz, now()) AS now,
           CASE WHEN c.used_at IS NOT NULL AND c.code_hash = $2
                     AND EXISTS (SELECT FROM :"schema".runner_devices AS d
                                 WHERE d.device_id = c.device_id AND d.public_key = $4 AND d.revoked_at IS NULL) THEN 'again'
                WHEN c.used_at IS NOT NULL THEN 'used'
                WHEN c.attempts >= $6 THEN 'locked'
                WHEN c.expires_at <= coalesce($7::timestamptz, now()) THEN 'expired'
                WHEN c.code_hash <> $2 THEN 'wrong'
                ELSE 'paired' END AS verdict
    FROM :"schema".pairing_codes AS c WHERE c.selector = $1 FOR UPDATE
), counted AS (
    UPDATE :"schema".pairing_codes AS c
    SET attempts = c.attempts + 1,
        used_at = CASE code.verdict WHEN 'paired' THEN code.now ELSE c.used_at END,
        device_id = CASE code.verdict WHEN 'paired' THEN $3 ELSE c.device_id END
    FROM code WHERE c.selector = code.selector AND code.verdict IN ('paired', 'wrong')
), device AS (
    INSERT INTO :"schema".runner_devices (device_id, org_id, name, public_key, created_at)
    SELECT $3, code.org_id, code.name, $4, code.now FROM code WHERE code.verdict = 'paired'
), noted AS (
    INSERT INTO :"schema".runner_audit (at, org_id, event, runner_id, detail)
    SELECT code.now, code.org_id, CASE code.verdict WHEN 'paired' THEN 'device paired' ELSE 'pairing refused' END,
           CASE code.verdict WHEN 'paired' THEN $3 END, CASE code.verdict WHEN 'paired' THEN code.name ELSE code.verdict END
    FROM code WHERE code.verdict <> 'again'
)
SELECT CASE code.verdict WHEN 'paired' THEN $3 ELSE code.device_id END AS device_id, code.verdict FROM code
