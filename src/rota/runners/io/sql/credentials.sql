-- Which of these are secrets of the pool that are good now.
-- Parameters: $1 hashes bytea[], $2 now timestamptz or null.
-- Rows: credential_hash of each that is.
-- Locks: none.
-- Index: pool_credentials_pkey.
SELECT p.credential_hash FROM :"schema".pool_credentials AS p
WHERE p.credential_hash = ANY ($1::bytea[])
  AND (p.expires_at IS NULL OR p.expires_at > coalesce($2::timestamptz, now()))
