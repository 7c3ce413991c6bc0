-- What an idle server looks at, once a second at most (I8): is a job of these kinds due, when will the next one be,
-- has a lease run out, is somebody asking this holder to stop a job, what is paused, and do jobs wait that are more
-- urgent than those which fill the slots of their kind. It writes nothing.
-- Parameters: $1 kinds text[] (those with a free slot), $2 holder text, $3 cancel grace_s float8,
--   $4 full kinds text[] (those without one), $5 lowest priority that runs integer[] and $6 jobs that run integer[] of
--   each; marks as in claim.sql: $7 kinds text[], $8 priorities integer[], $9 run_afters timestamptz[], $10 ids uuid[],
--   $11 ages float8[]; $12 seconds float8 since when no lease had run out (null: look at all), $13 now timestamptz or
--   null.
-- Rows: one: next_due_s float8 (0 or less: due now; null: nothing waits), expired boolean, cancels uuid[],
--   urgent_kinds text[], urgent_priorities integer[]: due jobs above the lowest that runs, at most as many as run;
--   paused text[] (`kind:` and a kind, `tenant:` and a tenant, or `all:`).
-- Locks: none.
-- Index: open_jobs_next, open_jobs_lease, open_jobs_cancel.
WITH clock AS MATERIALIZED (
    SELECT coalesce($13::timestamptz, now()) AS now
), mark AS MATERIALIZED (
    SELECT m.kind, m.priority, m.id,
           least(m.run_after, clock.now - make_interval(secs => 1 + coalesce(m.age_s, 0))) AS run_after
    FROM unnest($7::text[], $8::integer[], $9::timestamptz[], $10::uuid[], $11::double precision[])
         AS m(kind, priority, run_after, id, age_s)
    CROSS JOIN clock
), due AS (
    -- A person may have set 'infinity', from which nothing can be subtracted.
    SELECT min(least(greatest(first.run_after, '0001-01-02 00:00+00'), '9999-12-30 00:00+00')) AS run_after
    FROM unnest($1::text[]) AS k(kind) CROSS JOIN LATERAL (
        WITH RECURSIVE level(priority) AS (
            SELECT 2147483648
            UNION ALL
            -- The next lower one that has a mark, or a row between that and this one.
            SELECT (SELECT greatest(known.priority,
                                    (SELECT o.priority FROM :"schema".open_jobs AS o
                                     WHERE o.state = 'queued' AND o.place = 'worker' AND o.kind = k.kind
                                       AND o.priority < level.priority AND o.priority > known.priority
                                     ORDER BY o.priority DESC LIMIT 1))
                    FROM (SELECT coalesce(max(mark.priority), -2147483649) AS priority FROM mark
                          WHERE mark.kind = k.kind AND mark.priority < level.priority) AS known)
            FROM level WHERE level.priority > -2147483648
        )
        SELECT next.run_after
        FROM level
        LEFT JOIN mark ON mark.kind = k.kind AND mark.priority = level.priority
        CROSS JOIN LATERAL (
            SELECT o.run_after FROM :"schema".open_jobs AS o
            WHERE o.state = 'queued' AND o.place = 'worker' AND o.kind = k.kind AND o.priority = level.priority
              AND (o.run_after, o.id) > (coalesce(mark.run_after, '-infinity'),
                                         coalesce(mark.id, '00000000-0000-0000-0000-000000000000'))
              AND (o.tenant IS NULL OR o.tenant <> ALL (ARRAY(
                  SELECT p.name FROM :"schema".pauses AS p
                  WHERE p.scope = 'tenant' AND (p.until IS NULL OR p.until > coalesce($13::timestamptz, now())))))
            ORDER BY o.run_after, o.id LIMIT 1
        ) AS next
        WHERE level.priority BETWEEN -2147483648 AND 2147483647
    ) AS first
), urgent AS MATERIALIZED (
    SELECT f.kind, waits.priority
    FROM clock CROSS JOIN unnest($4::text[], $5::integer[], $6::integer[]) AS f(kind, lowest, running)
    CROSS JOIN LATERAL (
        WITH RECURSIVE level(priority) AS (
            SELECT 2147483648
            UNION ALL
            SELECT (SELECT greatest(known.priority,
                                    (SELECT o.priority FROM :"schema".open_jobs AS o
                                     WHERE o.state = 'queued' AND o.place = 'worker' AND o.kind = f.kind
                                       AND o.priority < level.priority AND o.priority > known.priority
                                     ORDER BY o.priority DESC LIMIT 1))
                    FROM (SELECT greatest(max(mark.priority), f.lowest) AS priority FROM mark
                          WHERE mark.kind = f.kind AND mark.priority < level.priority) AS known)
            FROM level WHERE level.priority > f.lowest
        )
        SELECT level.priority
        FROM level
        LEFT JOIN mark ON mark.kind = f.kind AND mark.priority = level.priority
        CROSS JOIN LATERAL (
            SELECT FROM :"schema".open_jobs AS o
            WHERE o.state = 'queued' AND o.place = 'worker' AND o.kind = f.kind AND o.priority = level.priority
              AND o.run_after <= clock.now
              AND (o.run_after, o.id) > (coalesce(mark.run_after, '-infinity'),
                                         coalesce(mark.id, '00000000-0000-0000-0000-000000000000'))
              AND (o.tenant IS NULL OR o.tenant <> ALL (ARRAY(
                  SELECT p.name FROM :"schema".pauses AS p
                  WHERE p.scope = 'tenant' AND (p.until IS NULL OR p.until > coalesce($13::timestamptz, now())))))
            LIMIT f.running
        ) AS due
        WHERE level.priority > f.lowest AND level.priority <= 2147483647
        LIMIT f.running
    ) AS waits
)
SELECT extract(epoch FROM due.run_after - clock.now)::double precision AS next_due_s,
       EXISTS (SELECT FROM :"schema".open_jobs AS o
               WHERE o.state = 'leased' AND o.place = 'worker' AND o.lease_until < clock.now
                 AND o.lease_until > coalesce(clock.now - make_interval(secs => 1 + $12), '-infinity'))
           OR EXISTS (SELECT FROM :"schema".open_jobs AS o
                      WHERE o.cancel_asked_at IS NOT NULL AND o.place = 'worker'
                        AND o.cancel_asked_at < clock.now - make_interval(secs => $3)) AS expired,
       ARRAY(SELECT o.id FROM :"schema".open_jobs AS o
             WHERE o.cancel_asked_at IS NOT NULL AND o.leased_by = $2) AS cancels,
       ARRAY(SELECT urgent.kind FROM urgent) AS urgent_kinds,
       ARRAY(SELECT urgent.priority FROM urgent) AS urgent_priorities,
       ARRAY(SELECT p.scope || ':' || p.name FROM :"schema".pauses AS p
             WHERE p.until IS NULL OR p.until > clock.now ORDER BY 1) AS paused
FROM clock CROSS JOIN due
