-- Which organisations are disabled.
-- Parameters: $1 org_ids text[] or null (all), $2 how many at most integer.
-- Rows: org_id, disabled_at, reason of each, in the order of their ids.
-- Locks: none.
-- Index: disabled_organisations_pkey.
SELECT d.org_id, d.disabled_at, d.reason FROM :"schema".disabled_organisations AS d
WHERE $1::text[] IS NULL OR d.org_id = ANY ($1::text[])
ORDER BY d.org_id LIMIT $2
