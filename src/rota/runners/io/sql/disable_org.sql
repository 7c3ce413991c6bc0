-- Disables an organisation and tells the gateways, which close the connections of its devices. Saying it again changes
-- nothing but the reason.
-- Parameters: $1 org_id text, $2 reason text or null, $3 now timestamptz or null.
-- Rows: one: org_id, disabled_at, reason.
-- Locks: its row.
-- Index: disabled_organisations_pkey.
WITH disabled AS (
    INSERT INTO :"schema".disabled_organisations AS d (org_id, disabled_at, reason)
    VALUES ($1, coalesce($3::timestamptz, now()), $2)
    ON CONFLICT (org_id) DO UPDATE SET reason = excluded.reason
    RETURNING d.org_id, d.disabled_at, d.reason
), noted AS (
    INSERT INTO :"schema".runner_audit (at, org_id, event, detail)
    SELECT coalesce($3::timestamptz, now()), disabled.org_id, 'organisation disabled', disabled.reason FROM disabled
), told AS (
    SELECT pg_notify(:'schema' || '_runners', 'disabled:' || disabled.org_id) FROM disabled
)
SELECT disabled.org_id, disabled.disabled_at, disabled.reason, (SELECT count(*) FROM told) AS told FROM disabled
