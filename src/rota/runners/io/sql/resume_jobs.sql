-- Runners that connected anew say which jobs they still hold: those whose leases hold are renewed, and their ops go to
-- this replica from now on. No lease that ran out comes back (I2).
-- Parameters: $1 ids uuid[] (ascending), $2 epochs bigint[], $3 their runners text[], $4 gateway instance text, $5 lease_s
--   float8, $6 now timestamptz or null.
-- Rows: as claim_jobs.sql, of each job that was kept, with its runner_id; accepted_at is null of one that was not
--   accepted yet.
-- Locks: the rows of the jobs table, in the order of the ids, then those of the facts and the sessions.
-- Index: open_jobs_pkey (BETWEEN: see finish.sql of the queue), runner_jobs_pkey, runner_sessions_job.
WITH clock AS MATERIALIZED (
    SELECT coalesce($6::timestamptz, now()) AS now
), held AS MATERIALIZED (
    SELECT g.id, clock.now
    FROM clock CROSS JOIN unnest($1::uuid[], $2::bigint[], $3::text[]) AS g(id, epoch, runner_id)
    CROSS JOIN LATERAL (
        SELECT FROM :"schema".open_jobs AS o
        WHERE o.id = g.id AND o.lease_epoch = g.epoch AND o.state || '' = 'leased' AND o.leased_by = 'runner:' || g.runner_id
          AND o.lease_until > coalesce($6::timestamptz, clock_timestamp())
        FOR UPDATE
    ) AS locked
), kept AS (
    UPDATE :"schema".open_jobs AS j
    SET lease_until = held.now + make_interval(secs => $5), heartbeat_at = held.now
    FROM held WHERE j.id BETWEEN held.id AND held.id
    RETURNING j.*, held.now
), facts AS (
    UPDATE :"schema".runner_jobs AS r SET gateway_instance = $4
    FROM kept WHERE r.job_id = kept.id
    RETURNING r.*
), moved AS (
    UPDATE :"schema".runner_sessions AS s SET gateway_instance = $4
    FROM kept WHERE s.job_id = kept.id AND s.lease_epoch = kept.lease_epoch AND s.closed_at IS NULL
)
SELECT substr(kept.leased_by, length('runner:') + 1) AS runner_id, kept.id, kept.place AS target, kept.tenant AS org_id, kept.kind AS job_type, kept.payload AS spec, kept.priority,
       kept.lease_epoch AS epoch, kept.tries, kept.created_at, kept.cancel_asked_at, facts.execution_id,
       facts.runtime_digest, facts.fontset_version, facts.output_bytes_max, facts.timeout_s, facts.idle_s,
       facts.one_shot, coalesce(facts.session_id, facts.job_id) AS session_id, facts.accepted_at,
       extract(epoch FROM facts.deadline_at - kept.now)::double precision AS left_s,
       pg_notify(:'schema' || '_runners', 'moved:' || json_build_array(kept.id, kept.lease_epoch, $4::text))::text AS told
FROM kept JOIN facts ON facts.job_id = kept.id
