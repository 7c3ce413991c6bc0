-- Creates a runner job, once for each idempotency key, and tells the gateways that something waits. An execution that is
-- a queue job is noted with the epoch of its try: the job is cancelled when that is over, also where it is over already,
-- as for a request that was on its way when the try ended.
-- Parameters: $1 id uuid, $2 idempotency key text, $3 target text, $4 org_id text, $5 job type text, $6 priority integer,
--   $7 spec jsonb, $8 execution_id text, $9 runtime digest text or null, $10 least fontset version text or null,
--   $11 its parts numeric[] or null, $12 output_bytes_max bigint, $13 timeout_s integer, $14 idle_s integer,
--   $15 one_shot boolean, $16 max_tries integer, $17 trace text or null, $18 now timestamptz or null.
-- Rows: id, if it was created; none if another job holds the key: read that one by key; if there is none either, the
--   organisation is disabled.
-- Locks: an insert that meets an uncommitted twin waits for its fate (S91).
-- Index: runner_jobs_key, open_jobs_pkey, ended_jobs_pkey, disabled_organisations_pkey.
WITH clock AS MATERIALIZED (
    SELECT coalesce($18::timestamptz, now()) AS now
), execution AS (
    SELECT j.id, j.lease_epoch FROM :"schema".jobs AS j
    WHERE j.id = CASE WHEN $8::text ~ '^[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}$' THEN $8::text::uuid END
      AND j.place || '' = 'worker'
), made AS (
    INSERT INTO :"schema".runner_jobs AS r
        (job_id, idempotency_key, execution_id, execution_job, execution_epoch, runtime_digest, fontset_version,
         fontset_key, output_bytes_max, timeout_s, idle_s, one_shot, created_at)
    SELECT $1, $2, $8, (SELECT execution.id FROM execution), (SELECT execution.lease_epoch FROM execution), $9, $10, $11,
           $12, $13, $14, $15, clock.now
    FROM clock WHERE NOT EXISTS (SELECT FROM :"schema".disabled_organisations AS d WHERE d.org_id = $4)
    ON CONFLICT (idempotency_key) DO NOTHING
    RETURNING r.job_id
), job AS (
    INSERT INTO :"schema".open_jobs
        (id, kind, payload, priority, tenant, run_after, max_tries, trace, place, execution_id, created_at)
    SELECT made.job_id, $5, $7, $6, $4, clock.now, $16, $17, $3, $8, clock.now FROM made CROSS JOIN clock
), noted AS (
    INSERT INTO :"schema".runner_audit (at, org_id, event, job_id, detail)
    SELECT clock.now, $4, 'job created', made.job_id, $5 || ' for ' || $3 FROM made CROSS JOIN clock
)
SELECT made.job_id AS id, pg_notify(:'schema' || '_runners', 'job:' || json_build_array(
    $3::text, $4::text, $5::text, $9::text, $10::text, $12::bigint, 1)) FROM made
