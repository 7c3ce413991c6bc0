-- What an idle server looks at, once a second at most (I8): is a job of these kinds due, when will the next one be,
-- has a lease run out, is somebody asking this holder to stop a job, and do jobs wait that are more urgent than those
-- which fill the slots of their kind. It writes nothing.
-- Parameters: $1 kinds text[] (those with a free slot), $2 holder text, $3 cancel grace_s float8,
--   $4 full kinds text[] (those without one), $5 lowest priority that runs integer[] and $6 jobs that run integer[] of
--   each, $7 now timestamptz or null.
-- Rows: one: next_due_s float8 (0 or less: due now; null: nothing waits), expired boolean, cancels uuid[],
--   urgent_kinds text[], urgent_priorities integer[]: due jobs above the lowest that runs, at most as many as run.
-- Locks: none.
-- Index: open_jobs_next, open_jobs_lease, open_jobs_cancel.
WITH clock AS MATERIALIZED (
    SELECT coalesce($7::timestamptz, now()) AS now
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
            ORDER BY o.run_after LIMIT 1
        ) AS next
        WHERE level.priority IS NOT NULL
    ) AS first
), urgent AS MATERIALIZED (
    SELECT f.kind, waits.priority
    FROM clock CROSS JOIN unnest($4::text[], $5::integer[], $6::integer[]) AS f(kind, lowest, running)
    CROSS JOIN LATERAL (
        WITH RECURSIVE level(priority) AS (
            (SELECT o.priority FROM :"schema".open_jobs AS o
             WHERE o.state = 'queued' AND o.place = 'worker' AND o.kind = f.kind AND o.priority > f.lowest
             ORDER BY o.priority DESC LIMIT 1)
            UNION ALL
            SELECT (SELECT o.priority FROM :"schema".open_jobs AS o
                    WHERE o.state = 'queued' AND o.place = 'worker' AND o.kind = f.kind AND o.priority < level.priority
                      AND o.priority > f.lowest
                    ORDER BY o.priority DESC LIMIT 1)
            FROM level WHERE level.priority IS NOT NULL
        )
        SELECT level.priority
        FROM level CROSS JOIN LATERAL (
            SELECT FROM :"schema".open_jobs AS o
            WHERE o.state = 'queued' AND o.place = 'worker' AND o.kind = f.kind AND o.priority = level.priority
              AND o.run_after <= clock.now
            LIMIT f.running
        ) AS due
        WHERE level.priority IS NOT NULL
        LIMIT f.running
    ) AS waits
)
SELECT extract(epoch FROM due.run_after - clock.now)::double precision AS next_due_s,
       EXISTS (SELECT FROM :"schema".open_jobs AS o WHERE o.state = 'leased' AND o.lease_until < clock.now)
           OR EXISTS (SELECT FROM :"schema".open_jobs AS o
                      WHERE o.cancel_asked_at IS NOT NULL
                        AND o.cancel_asked_at < clock.now - make_interval(secs => $3)) AS expired,
       ARRAY(SELECT o.id FROM :"schema".open_jobs AS o
             WHERE o.cancel_asked_at IS NOT NULL AND o.leased_by = $2) AS cancels,
       ARRAY(SELECT urgent.kind FROM urgent) AS urgent_kinds,
       ARRAY(SELECT urgent.priority FROM urgent) AS urgent_priorities
FROM clock CROSS JOIN due
