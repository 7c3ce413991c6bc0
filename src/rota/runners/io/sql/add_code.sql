-- Keeps a pairing code, as a hash.
-- Parameters: $1 selector text, $2 hash bytea, $3 org_id text, $4 name text, $5 valid for, seconds float8, $6 now
--   timestamptz or null.
-- Rows: selector, if no other code has it.
-- Locks: none.
-- Index: pairing_codes_pkey.
WITH added AS (
    INSERT INTO :"schema".pairing_codes AS c (selector, code_hash, org_id, name, created_at, expires_at)
    VALUES ($1, $2, $3, $4, coalesce($6::timestamptz, now()),
            coalesce($6::timestamptz, now()) + make_interval(secs => $5))
    ON CONFLICT DO NOTHING RETURNING c.selector, c.created_at
), noted AS (
    INSERT INTO :"schema".runner_audit (at, org_id, event, detail)
    SELECT added.created_at, $3, 'code made', $4 FROM added
)
SELECT added.selector FROM added
