-- Keeps events for organisations' audit trails, in the order in which they are given.
-- Parameters: $1 org ids text[] (null: the pool), $2 events text[], $3 runner ids text[] (of nulls too), $4 job ids uuid[]
--   (of nulls too), $5 details text[] (of nulls too), $6 now timestamptz or null.
-- Rows: none.
-- Locks: none.
-- Index: none.
INSERT INTO :"schema".runner_audit (at, org_id, event, runner_id, job_id, detail)
SELECT coalesce($6::timestamptz, now()), g.org_id, g.event, g.runner_id, g.job_id, g.detail
FROM unnest($1::text[], $2::text[], $3::text[], $4::uuid[], $5::text[])
    WITH ORDINALITY AS g(org_id, event, runner_id, job_id, detail, place)
ORDER BY g.place
