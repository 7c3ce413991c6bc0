-- What holds a runner job, beside the runners themselves: its surroundings at one moment, for rota.runners.explain.
-- Parameters: $1 job uuid, $2 live_s float8 (how long ago a gateway that runs was seen at most), $3 jobs ahead that are
--   counted at most integer, $4 now timestamptz or null.
-- Rows: one, none if it is no runner job: gateways jsonb (those that run, by instance), pauses jsonb (what holds it back),
--   disabled_s float8 and disabled_reason (since when its organisation is), held bigint (what its organisation has in the
--   pool), ahead bigint (due jobs before it in its line), declined jsonb (seconds for which a runner is not offered it
--   again, by runner).
-- Locks: none.
-- Index: the primary keys, open_jobs_runner_held, open_jobs_runner_next.
WITH clock AS MATERIALIZED (
    SELECT coalesce($4::timestamptz, now()) AS now
), job AS MATERIALIZED (
    SELECT j.id, j.kind, j.tenant, j.place, j.priority, j.created_at, j.state
    FROM :"schema".jobs AS j JOIN :"schema".runner_jobs AS r ON r.job_id = j.id WHERE j.id = $1
)
SELECT coalesce((SELECT jsonb_agg(jsonb_build_object('instance', g.instance, 'address', g.address) ORDER BY g.instance)
                 FROM :"schema".gateways AS g WHERE g.seen_at >= clock.now - make_interval(secs => $2)), '[]') AS gateways,
       coalesce((SELECT jsonb_agg(jsonb_build_object(
                            'scope', p.scope, 'name', p.name, 'note', p.note, 'paused_by', p.paused_by,
                            'paused_ago_s', extract(epoch FROM clock.now - p.paused_at),
                            'opens_in_s', extract(epoch FROM p.until - clock.now)) ORDER BY p.scope, p.name)
                 FROM :"schema".pauses AS p
                 WHERE (p.until IS NULL OR p.until > clock.now)
                   AND (p.scope = 'all' OR p.scope = 'kind' AND p.name = job.kind
                        OR p.scope = 'tenant' AND p.name = job.tenant)), '[]') AS pauses,
       extract(epoch FROM clock.now - d.disabled_at)::double precision AS disabled_s, d.reason AS disabled_reason,
       (SELECT count(*) FROM :"schema".open_jobs AS o
        WHERE o.state = 'leased' AND o.place <> 'worker' AND o.place = 'CloudPool' AND o.tenant = job.tenant) AS held,
       (SELECT count(*) FROM (
            SELECT FROM :"schema".open_jobs AS o
            WHERE job.state = 'queued' AND o.state = 'queued' AND o.place <> 'worker' AND o.place = job.place
              AND (o.place = 'CloudPool' OR o.tenant = job.tenant)
              AND (o.priority > job.priority
                   OR o.priority = job.priority AND (o.created_at, o.id) < (job.created_at, job.id))
            LIMIT $3) AS line) AS ahead,
       coalesce((SELECT jsonb_object_agg(x.runner_id, extract(epoch FROM x.until - clock.now))
                 FROM :"schema".runner_rejections AS x WHERE x.job_id = job.id AND x.until > clock.now), '{}') AS declined
FROM job CROSS JOIN clock LEFT JOIN :"schema".disabled_organisations AS d ON d.org_id = job.tenant
