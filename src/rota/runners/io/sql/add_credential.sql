-- Adds a secret of the pool; those before are good for a while longer. The gateways look at who is connected with which.
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
    INSERT INTO :"schema".runner_audit (at, event, detail)
    SELECT clock.now, 'pool credential made', 'those before end in ' || $2::bigint || ' s' FROM clock
), told AS (
    SELECT pg_notify(:'schema' || '_runners', 'credential:') FROM clock
)
INSERT INTO :"schema".pool_credentials (credential_hash, created_at) SELECT $1, clock.now FROM clock
WHERE (SELECT count(*) FROM told) > 0
ON CONFLICT DO NOTHING
