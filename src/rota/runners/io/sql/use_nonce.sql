-- Uses a nonce up, on all replicas.
-- Parameters: $1 device_id text, $2 nonce text, $3 now timestamptz or null.
-- Rows: nonce, if it was not used before.
-- Locks: an insert that meets an uncommitted twin waits for its fate.
-- Index: runner_nonces_pkey.
INSERT INTO :"schema".runner_nonces AS n (device_id, nonce, seen_at) VALUES ($1, $2, coalesce($3::timestamptz, now()))
ON CONFLICT DO NOTHING
RETURNING n.nonce
