-- A replica says that it is there, and where the others reach it.
-- Parameters: $1 instance text, $2 address text, $3 now timestamptz or null.
-- Rows: none.
-- Locks: its row.
-- Index: gateways_pkey.
INSERT INTO :"schema".gateways AS g (instance, address, seen_at) VALUES ($1, $2, coalesce($3::timestamptz, now()))
ON CONFLICT (instance) DO UPDATE SET address = EXCLUDED.address, seen_at = EXCLUDED.seen_at
