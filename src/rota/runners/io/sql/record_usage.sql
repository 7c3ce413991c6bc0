-- Records what jobs have used, each job once; one without units has used nothing, and is only marked.
-- Parameters: $1 ids uuid[], $2 org_ids text[], $3 targets text[], $4 job types text[], $5 units text[] (json, or null),
--     $6 credits text[], $7 outcomes text[], $8 failure classes text[], $9 now timestamptz or null.
-- Rows: none.
-- Locks: the facts of these jobs, in the order of their ids.
-- Index: usage_records_pkey, runner_jobs_pkey.
WITH given AS MATERIALIZED (
    SELECT * FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[])
        AS g (id, org_id, target, job_type, units, credits, outcome, failure_class)
), locked AS MATERIALIZED (
    SELECT r.job_id FROM :"schema".runner_jobs AS r WHERE r.job_id = ANY($1::uuid[]) ORDER BY r.job_id FOR UPDATE
), recorded AS (
    INSERT INTO :"schema".usage_records AS u
        (job_id, org_id, target, job_type, units, credits, outcome, failure_class, recorded_at)
    SELECT g.id, g.org_id, g.target, g.job_type, g.units::jsonb, g.credits::numeric, g.outcome, g.failure_class,
           coalesce($9::timestamptz, now())
    FROM given AS g JOIN locked ON locked.job_id = g.id
    WHERE g.units IS NOT NULL
    ON CONFLICT DO NOTHING
)
UPDATE :"schema".runner_jobs AS r SET usage_recorded = true FROM locked WHERE r.job_id = locked.job_id
