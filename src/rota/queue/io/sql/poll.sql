-- What an idle server looks at, once a second at most (I8): is a job of these kinds due, when will the next one be,
-- has a lease run out, is somebody asking this holder to stop a job, what is paused. It writes nothing.
-- Parameters: $1 kinds text[] (those with a free slot), $2 holder text, $3 cancel grace_s float8,
--   $4 now timestamptz or null.
-- Rows: one: next_due_s float8 (0 or less: due now; null: nothing waits), expired boolean, cancels uuid[],
--   paused text[] (`kind:` and a kind, `tenant:` and a tenant, or `all:`).
-- Locks: none.
-- Index: open_jobs_next, open_jobs_lease, open_jobs_cancel.
WITH clock AS MATERIALIZED (
    SELECT coalesce($4::timestamptz, now()) AS now
), due AS (
    SELECT min(first.run_after) AS run_after
    FROM unnest($1::text[]) AS k(kind) CROSS JOIN LATERAL (
        WITH RECURSIVE level(priority) AS (
            (SELECT o.priority FROM :"schema".open_jobs AS o
             WHERE o.state = 'queued' AND o.place = 'worker' AND o.kind = k.kind
             ORDER BY o.priority DESC LIMIT 1)
            UNION ALL
            SELECT (SELECT o.priority FROM :"schema".open_jobs AS o
                    WHERE o.state = 'queued' AND o.place = 'worker' AND o.kind = k.kind AND o.priority < level.priority
                    ORDER BY o.priority DESC LIMIT 1)
            FROM level WHERE level.priority IS NOT NULL
        )
        SELECT next.run_after
        FROM level CROSS JOIN LATERAL (
            SELECT o.run_after FROM :"schema".open_jobs AS o
            WHERE o.state = 'queued' AND o.place = 'worker' AND o.kind = k.kind AND o.priority = level.priority
              AND (o.tenant IS NULL OR o.tenant <> ALL (ARRAY(
                  SELECT p.name FROM :"schema".pauses AS p
                  WHERE p.scope = 'tenant' AND (p.until IS NULL OR p.until > coalesce($4::timestamptz, now())))))
            ORDER BY o.run_after LIMIT 1
        ) AS next
        WHERE level.priority IS NOT NULL
    ) AS first
)
SELECT extract(epoch FROM due.run_after - clock.now)::double precision AS next_due_s,
       EXISTS (SELECT FROM :"schema".open_jobs AS o WHERE o.state = 'leased' AND o.lease_until < clock.now)
           OR EXISTS (SELECT FROM :"schema".open_jobs AS o
                      WHERE o.cancel_asked_at IS NOT NULL
                        AND o.cancel_asked_at < clock.now - make_interval(secs => $3)) AS expired,
       ARRAY(SELECT o.id FROM :"schema".open_jobs AS o
             WHERE o.cancel_asked_at IS NOT NULL AND o.leased_by = $2) AS cancels,
       ARRAY(SELECT p.scope || ':' || p.name FROM :"schema".pauses AS p
             WHERE p.until IS NULL OR p.until > clock.now ORDER BY 1) AS paused
FROM clock CROSS JOIN due
