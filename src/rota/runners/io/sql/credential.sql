-- Whether this is a secret of the pool that is good now.
-- Parameters: $1 hash bytea, $2 now timestamptz or null.
-- Rows: created_at; none if it is not.
-- Locks: none.
-- Index: pool_credentials_pkey.
SELECT p.created_at FROM :"schema".pool_credentials AS p
WHERE p.credential_hash = $1 AND (p.expires_at IS NULL OR p.expires_at > coalesce($2::timestamptz, now()))
