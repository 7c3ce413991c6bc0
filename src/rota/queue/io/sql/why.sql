-- What holds a job: its surroundings at one moment, for rota.queue.explain. It changes nothing.
-- Parameters: $1 job uuid, $2 live_s float8 (how long ago a live server was seen at most), $3 jobs ahead that are
--   counted at most integer, $4 ended jobs for the pace at most integer, $5 now timestamptz or null.
-- Rows: one, none if there is no such job: takers jsonb (live servers that take the kind, with what they run of it, what
--   they say of themselves and, where that holds jobs of the kind back, what else they run),
--   roles text[] and kinds text[] (of all live servers), pauses jsonb, limits jsonb (those of the kind over all
--   servers, as the server that was seen last has them), running bigint, tenant_running bigint, tenant_jobs jsonb (the oldest 5 of these),
--   tenants_waiting bigint, ahead bigint, ahead_higher bigint, ahead_top
--   integer (the highest priority of these),
--   ended bigint and ended_s float8 (the pace of the last hour), holder_seen_s float8.
-- Locks: none.
-- Index: the primary keys, open_jobs_next, open_jobs_lease, open_jobs_turn, ended_jobs_finished.
WITH clock AS MATERIALIZED (
    SELECT coalesce($5::timestamptz, now()) AS now
), job AS MATERIALIZED (
    SELECT o.id, o.kind, o.tenant, o.priority, o.run_after, o.state, o.leased_by
    FROM :"schema".open_jobs AS o WHERE o.id = $1
    UNION ALL
    SELECT e.id, e.kind, e.tenant, e.priority, e.run_after, e.state, e.leased_by
    FROM :"schema".ended_jobs AS e WHERE e.id = $1
), live AS MATERIALIZED (
    SELECT s.holder, s.role, s.kinds, s.limits, s.draining, s.seen_at, s.facts
    FROM :"schema".servers AS s CROSS JOIN clock
    WHERE s.seen_at >= clock.now - make_interval(secs => $2)
), leased AS MATERIALIZED (
    SELECT o.id, o.leased_by, o.tenant, o.started_at, o.heartbeat_at, o.lease_until
    FROM :"schema".open_jobs AS o CROSS JOIN clock
    WHERE o.state = 'leased' AND o.lease_until > clock.now AND o.kind = (SELECT job.kind FROM job)
), bound AS MATERIALIZED (
    -- Servers where jobs of other kinds take what this one needs: CPU slots, or a share of the slots of exec servers.
    SELECT live.holder, live.facts
    FROM job CROSS JOIN live
    WHERE live.kinds ? job.kind AND (live.facts -> 'cpu_kinds' ? job.kind OR live.facts -> 'exec' -> 'kinds' ? job.kind)
), held AS MATERIALIZED (
    SELECT o.id, o.kind, o.leased_by, o.started_at, o.heartbeat_at
    FROM :"schema".open_jobs AS o CROSS JOIN clock
    WHERE o.state = 'leased' AND o.lease_until > clock.now AND o.leased_by IN (SELECT bound.holder FROM bound)
), limited AS MATERIALIZED (
    SELECT (array_agg(live.limits -> job.kind ORDER BY live.seen_at DESC, live.holder))[1] AS limits
    FROM job CROSS JOIN live
    WHERE live.kinds ? job.kind
), line AS MATERIALIZED (
    SELECT o.priority
    FROM job CROSS JOIN clock CROSS JOIN :"schema".open_jobs AS o
    WHERE o.state = 'queued' AND o.place = 'worker' AND o.kind = job.kind AND o.run_after <= clock.now
      AND job.state = 'queued'
      AND (o.priority > job.priority
           OR o.priority = job.priority AND (o.run_after, o.id) < (job.run_after, job.id))
    LIMIT $3
), pace AS MATERIALIZED (
    SELECT e.started_at, e.finished_at
    FROM :"schema".ended_jobs AS e CROSS JOIN clock
    WHERE e.finished_at > clock.now - interval '1 hour' AND e.kind = (SELECT job.kind FROM job)
      AND e.started_at IS NOT NULL
    LIMIT $4
)
SELECT coalesce((
           SELECT jsonb_agg(jsonb_build_object(
                      'holder', live.holder, 'limit', live.kinds -> job.kind, 'draining', live.draining,
                      'running', ran.running, 'oldest_id', oldest.id,
                      'oldest_s', extract(epoch FROM clock.now - oldest.started_at),
                      'progress_s', extract(epoch FROM clock.now - oldest.heartbeat_at),
                      'lease_left_s', extract(epoch FROM oldest.lease_until - clock.now),
                      'facts', live.facts, 'held', counted.held, 'cpu_jobs', cpu.jobs) ORDER BY live.holder)
           FROM live
                CROSS JOIN LATERAL (SELECT count(*) AS running FROM leased WHERE leased.leased_by = live.holder) AS ran
                LEFT JOIN LATERAL (SELECT * FROM leased WHERE leased.leased_by = live.holder
                                   ORDER BY leased.started_at, leased.id LIMIT 1) AS oldest ON true
                CROSS JOIN LATERAL (
                    SELECT coalesce(jsonb_object_agg(one.kind, one.count), '{}') AS held
                    FROM (SELECT held.kind, count(*) AS count FROM held WHERE held.leased_by = live.holder
                          GROUP BY held.kind) AS one) AS counted
                CROSS JOIN LATERAL (
                    SELECT coalesce(jsonb_agg(jsonb_build_object(
                               'job_id', one.id, 'kind', one.kind, 'holder', live.holder,
                               'runs_s', extract(epoch FROM clock.now - one.started_at),
                               'progress_s', extract(epoch FROM clock.now - one.heartbeat_at))
                               ORDER BY one.started_at, one.id), '[]') AS jobs
                    FROM (SELECT * FROM held WHERE held.leased_by = live.holder AND live.facts -> 'cpu_kinds' ? held.kind
                          ORDER BY held.started_at, held.id LIMIT 5) AS one) AS cpu
           WHERE live.kinds ? job.kind), '[]') AS takers,
       ARRAY(SELECT live.role FROM live ORDER BY live.role) AS roles,
       ARRAY(SELECT DISTINCT kind.name FROM live CROSS JOIN jsonb_object_keys(live.kinds) AS kind(name)
             ORDER BY kind.name) AS kinds,
       coalesce((
           SELECT jsonb_agg(jsonb_build_object(
                      'scope', p.scope, 'name', p.name, 'note', p.note, 'paused_by', p.paused_by,
                      'paused_ago_s', extract(epoch FROM clock.now - p.paused_at),
                      'opens_in_s', extract(epoch FROM p.until - clock.now)) ORDER BY p.scope, p.name)
           FROM :"schema".pauses AS p
           WHERE (p.until IS NULL OR p.until > clock.now)
             AND (p.scope = 'all' OR p.scope = 'kind' AND p.name = job.kind
                  OR p.scope = 'tenant' AND p.name = job.tenant)), '[]') AS pauses,
       (SELECT limited.limits FROM limited) AS limits,
       (SELECT count(*) FROM leased) AS running,
       (SELECT count(*) FROM leased WHERE leased.tenant = job.tenant) AS tenant_running,
       coalesce((
           SELECT jsonb_agg(jsonb_build_object(
                      'job_id', own.id, 'holder', own.leased_by, 'runs_s', extract(epoch FROM clock.now - own.started_at),
                      'progress_s', extract(epoch FROM clock.now - own.heartbeat_at)) ORDER BY own.started_at, own.id)
           FROM (SELECT * FROM leased WHERE leased.tenant = job.tenant
                 ORDER BY leased.started_at, leased.id LIMIT 5) AS own), '[]') AS tenant_jobs,
       (SELECT count(*)
        FROM (
            WITH RECURSIVE waiting(tenant) AS (
                -- Only where tenants take turns, which is where an index serves it.
                (SELECT o.tenant FROM :"schema".open_jobs AS o
                 WHERE (SELECT (limited.limits ->> 'fair')::boolean OR limited.limits ? 'tenant' FROM limited)
                   AND o.state = 'queued' AND o.place = 'worker' AND o.kind = job.kind AND o.tenant IS NOT NULL
                 ORDER BY o.tenant COLLATE "C" LIMIT 1)
                UNION ALL
                SELECT (SELECT o.tenant FROM :"schema".open_jobs AS o
                        WHERE o.state = 'queued' AND o.place = 'worker' AND o.kind = job.kind
                          AND o.tenant COLLATE "C" > waiting.tenant
                        ORDER BY o.tenant COLLATE "C" LIMIT 1)
                FROM waiting WHERE waiting.tenant IS NOT NULL
            )
            SELECT waiting.tenant FROM waiting
            WHERE waiting.tenant IS NOT NULL AND waiting.tenant IS DISTINCT FROM job.tenant
            LIMIT 1000
        ) AS others) AS tenants_waiting,
       (SELECT count(*) FROM line) AS ahead,
       (SELECT count(*) FROM line WHERE line.priority > job.priority) AS ahead_higher,
       (SELECT max(line.priority) FROM line) AS ahead_top,
       (SELECT count(*) FROM pace) AS ended,
       (SELECT extract(epoch FROM CASE WHEN count(*) < $4 THEN clock.now ELSE max(pace.finished_at) END
                                  - min(pace.started_at)) FROM pace)::double precision AS ended_s,
       (SELECT extract(epoch FROM clock.now - s.seen_at)::double precision FROM :"schema".servers AS s
        WHERE s.holder = job.leased_by) AS holder_seen_s
FROM job CROSS JOIN clock
