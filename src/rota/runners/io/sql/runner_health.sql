-- How the gateways and the runner jobs are, for rota doctor.
-- Parameters: $1 live_s float8 (how long ago a gateway that runs was seen at most), $2 now timestamptz or null.
-- Rows: one: gateways jsonb (those that run, by instance), devices bigint (paired and not revoked), waiting and held
--   bigint (queued and leased runner jobs), overdue bigint (leases that ran out more than a minute ago), disabled jsonb
--   (queued jobs of disabled organisations, by organisation), held_by jsonb (jobs in the pool of each organisation that
--   has more waiting there).
-- Locks: none.
-- Index: runner_devices_pkey, open_jobs_runner_next, open_jobs_runner_held, open_jobs_lease.
WITH clock AS MATERIALIZED (
    SELECT coalesce($2::timestamptz, now()) AS now
), waiting AS MATERIALIZED (
    SELECT o.place, o.tenant, count(*) AS jobs FROM :"schema".open_jobs AS o
    WHERE o.state = 'queued' AND o.place <> 'worker' GROUP BY o.place, o.tenant
), held AS MATERIALIZED (
    SELECT o.place, o.tenant, count(*) AS jobs FROM :"schema".open_jobs AS o
    WHERE o.state = 'leased' AND o.place <> 'worker' GROUP BY o.place, o.tenant
)
SELECT coalesce((SELECT jsonb_agg(jsonb_build_object('instance', g.instance, 'address', g.address) ORDER BY g.instance)
                 FROM :"schema".gateways AS g WHERE g.seen_at >= clock.now - make_interval(secs => $1)), '[]') AS gateways,
       (SELECT count(*) FROM :"schema".runner_devices AS d WHERE d.revoked_at IS NULL) AS devices,
       (SELECT coalesce(sum(waiting.jobs), 0)::bigint FROM waiting) AS waiting,
       (SELECT coalesce(sum(held.jobs), 0)::bigint FROM held) AS held,
       (SELECT count(*) FROM :"schema".open_jobs AS o
        WHERE o.state = 'leased' AND o.place <> 'worker' AND o.lease_until < clock.now - interval '1 minute') AS overdue,
       coalesce((SELECT jsonb_object_agg(d.org_id, coalesce(stuck.jobs, 0))
                 FROM :"schema".disabled_organisations AS d
                 LEFT JOIN (SELECT waiting.tenant, sum(waiting.jobs) AS jobs FROM waiting GROUP BY waiting.tenant) AS stuck
                      ON stuck.tenant = d.org_id), '{}') AS disabled,
       coalesce((SELECT jsonb_object_agg(held.tenant, held.jobs)
                 FROM held JOIN waiting ON waiting.place = held.place AND waiting.tenant = held.tenant
                 WHERE held.place = 'CloudPool'), '{}') AS held_by
FROM clock
