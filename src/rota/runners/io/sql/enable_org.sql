-- Enables an organisation again, and has the gateways look for jobs of it that wait.
-- Parameters: $1 org_id text, $2 now timestamptz or null.
-- Rows: org_id; none if it was not disabled.
-- Locks: its row.
-- Index: disabled_organisations_pkey.
WITH enabled AS (
    DELETE FROM :"schema".disabled_organisations AS d WHERE d.org_id = $1 RETURNING d.org_id
), noted AS (
    INSERT INTO :"schema".runner_audit (at, org_id, event)
    SELECT coalesce($2::timestamptz, now()), enabled.org_id, 'organisation enabled' FROM enabled
), told AS (
    SELECT pg_notify(:'schema' || '_runners', 'enabled:' || enabled.org_id) FROM enabled
)
SELECT enabled.org_id, (SELECT count(*) FROM told) AS told FROM enabled
