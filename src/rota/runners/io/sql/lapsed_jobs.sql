-- Runner jobs whose time is over, for the reaper: leases that ran out, cancels that were not answered within the grace,
-- and jobs whose execution is over. It writes nothing; what is written afterwards is fenced by the epoch.
-- Parameters: $1 cancel grace_s float8, $2 how many of each at most integer, $3 now timestamptz or null.
-- Rows: id, epoch, why (lease, cancel or execution), state, one_shot, cancel_asked, tries, max_tries.
-- Locks: none.
-- Index: open_jobs_lease, open_jobs_cancel, open_jobs_runner_next, open_jobs_runner_held, runner_jobs_pkey,
--   open_jobs_pkey.
WITH clock AS MATERIALIZED (
    SELECT coalesce($3::timestamptz, now()) AS now
), over AS (
    (SELECT o.id, 'lease' AS why FROM :"schema".open_jobs AS o
     WHERE o.state = 'leased' AND o.place <> 'worker' AND o.lease_until < (SELECT clock.now FROM clock)
     ORDER BY o.lease_until LIMIT $2)
    UNION ALL
    (SELECT o.id, 'cancel' FROM :"schema".open_jobs AS o
     WHERE o.state || '' = 'leased' AND o.place <> 'worker' AND o.cancel_asked_at IS NOT NULL
       AND o.lease_until >= (SELECT clock.now FROM clock)
       AND o.cancel_asked_at < (SELECT clock.now FROM clock) - make_interval(secs => $1)
     LIMIT $2)
    UNION ALL
    (SELECT o.id, 'execution' FROM :"schema".open_jobs AS o JOIN :"schema".runner_jobs AS r ON r.job_id = o.id
     WHERE o.state IN ('queued', 'leased') AND o.place <> 'worker' AND o.cancel_asked_at IS NULL
       AND (o.state = 'queued' OR o.lease_until >= (SELECT clock.now FROM clock))
       AND r.execution_job IS NOT NULL
       AND NOT EXISTS (SELECT FROM :"schema".open_jobs AS e
                       WHERE e.id = r.execution_job AND e.state || '' = 'leased' AND e.lease_epoch = r.execution_epoch)
     LIMIT $2)
)
SELECT o.id, o.lease_epoch AS epoch, over.why, o.state, r.one_shot, o.cancel_asked_at IS NOT NULL AS cancel_asked,
       o.tries, o.max_tries
FROM over JOIN :"schema".open_jobs AS o ON o.id = over.id JOIN :"schema".runner_jobs AS r ON r.job_id = over.id
ORDER BY o.id
