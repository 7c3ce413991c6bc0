-- Which of these secrets of the pool are not good any more: replaced longer ago than their overlap, or removed.
-- Parameters: $1 hashes bytea[], $2 now timestamptz or null.
-- Rows: credential_hash of each.
-- Locks: none.
-- Index: pool_credentials_pkey.
SELECT given.credential_hash FROM unnest($1::bytea[]) AS given(credential_hash)
WHERE NOT EXISTS (SELECT FROM :"schema".pool_credentials AS p
                  WHERE p.credential_hash = given.credential_hash
                    AND (p.expires_at IS NULL OR p.expires_at > coalesce($2::timestamptz, now())))
