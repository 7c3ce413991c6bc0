-- Uses nonces up, on all replicas. One that is given twice is used once.
-- Parameters: $1 device ids text[], $2 nonces text[], $3 now timestamptz or null.
-- Rows: device_id, nonce of each that was not used before.
-- Locks: an insert that meets an uncommitted twin waits for its fate; all insert in the same order.
-- Index: runner_nonces_pkey.
INSERT INTO :"schema".runner_nonces AS n (device_id, nonce, seen_at)
SELECT g.device_id, g.nonce, coalesce($3::timestamptz, now())
FROM unnest($1::text[], $2::text[]) AS g(device_id, nonce)
ORDER BY g.device_id, g.nonce
ON CONFLICT DO NOTHING
RETURNING n.device_id, n.nonce
