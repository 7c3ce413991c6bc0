-- Adds a secret of the pool; those before are good for a while longer.
-- Parameters: $1 hash bytea, $2 overlap_s float8, $3 now timestamptz or null.
-- Rows: none.
-- Locks: all rows of the table.
-- Index: pool_credentials_pkey.
WITH clock AS MATERIALIZED (
    SELECT coalesce($3::timestamptz, now()) AS now
), older AS (
    UPDATE :"schema".pool_credentials AS p
    SET expires_at = least(p.expires_at, clock.now + make_interval(secs => $2))
    FROM clock WHERE p.credential_hash <> $1
), noted AS (
    INSERT INTO :"schema".runner_audit (at, event) SELECT clock.now, 'pool credential made' FROM clock
)
INSERT INTO :"schema".pool_credentials (credential_hash, created_at) SELECT $1, clock.now FROM clock
ON CONFLICT DO NOTHING
