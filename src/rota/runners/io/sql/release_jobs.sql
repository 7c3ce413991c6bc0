-- Returns runner jobs to the queue: rejected or not accepted in time, which counts no try, or a one-shot job whose try
-- failed. Who rejected one is not offered it again for a while. Fenced by epoch (I3). One that somebody wants cancelled
-- does not come back: end it.
-- Parameters: $1 ids uuid[] (ascending), $2 epochs bigint[], $3 counted boolean[], $4 reasons text[],
--   $5 rejected by text[] (null: nobody did), $6 how long that is remembered, seconds float8, $7 boolean: only where the
--   lease has run out, $8 now timestamptz or null.
-- Rows: id of each job that was returned.
-- Locks: the rows of the jobs table, in the order of the ids, then those of the facts and the sessions.
-- Index: open_jobs_pkey (BETWEEN: see finish.sql of the queue), runner_jobs_pkey, runner_sessions_job.
WITH given AS MATERIALIZED (
    SELECT g.*, coalesce($8::timestamptz, now()) AS now
    FROM unnest($1::uuid[], $2::bigint[], $3::boolean[], $4::text[], $5::text[])
         AS g(id, epoch, counted, reason, rejected_by)
), held AS MATERIALIZED (
    SELECT given.*, locked.place, locked.tenant, locked.kind
    FROM given CROSS JOIN LATERAL (
        SELECT o.place, o.tenant, o.kind FROM :"schema".open_jobs AS o
        WHERE o.id = given.id AND o.lease_epoch = given.epoch AND o.state || '' = 'leased' AND o.place || '' <> 'worker'
          AND o.cancel_asked_at IS NULL AND NOT ($7::boolean AND o.lease_until >= given.now)
        FOR UPDATE
    ) AS locked
), back AS (
    UPDATE :"schema".open_jobs AS j
    SET state = 'queued', lease_until = NULL, last_error = held.reason,
        tries = CASE WHEN held.counted THEN j.tries ELSE greatest(j.tries - 1, 0) END
    FROM held WHERE j.id BETWEEN held.id AND held.id
), facts AS (
    UPDATE :"schema".runner_jobs AS r SET accepted_at = NULL, session_id = NULL, deadline_at = NULL
    FROM held WHERE r.job_id = held.id
    RETURNING r.runtime_digest, r.fontset_version, r.output_bytes_max, held.place, held.tenant, held.kind
), closed AS (
    UPDATE :"schema".runner_sessions AS s SET closed_at = held.now, closed_reason = 'released'
    FROM held WHERE s.job_id = held.id AND s.closed_at IS NULL
), remembered AS (
    INSERT INTO :"schema".runner_rejections (job_id, runner_id, until)
    SELECT held.id, held.rejected_by, held.now + make_interval(secs => $6)
    FROM held WHERE held.rejected_by IS NOT NULL
    ON CONFLICT (job_id, runner_id) DO UPDATE SET until = EXCLUDED.until
), noted AS (
    INSERT INTO :"schema".runner_audit (at, org_id, event, runner_id, job_id, detail)
    SELECT held.now, held.tenant, 'job returned', held.rejected_by, held.id, held.reason FROM held
), told AS (
    SELECT pg_notify(:'schema' || '_runners', 'job:' || json_build_array(
        f.place, f.tenant, f.kind, f.runtime_digest, f.fontset_version, f.output_bytes_max, 1))
    FROM facts AS f
)
SELECT held.id, (SELECT count(*) FROM told) AS told FROM held
