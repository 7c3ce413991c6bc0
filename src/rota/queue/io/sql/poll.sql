-- What an idle server looks at, once a second at most (I8): is a job of these kinds due, when will the next one be,
-- has a lease run out, is somebody asking this holder to stop a job. It writes nothing.
-- Parameters: $1 kinds text[] (those with a free slot), $2 holder text, $3 cancel grace_s float8; marks as in
--   claim.sql: $4 kinds text[], $5 priorities integer[], $6 run_afters timestamptz[], $7 ids uuid[], $8 ages float8[];
--   $9 seconds float8 since when no lease had run out (null: look at all), $10 now timestamptz or null.
-- Rows: one: next_due_s float8 (0 or less: due now; null: nothing waits), expired boolean, cancels uuid[].
-- Locks: none.
-- Index: open_jobs_next, open_jobs_lease, open_jobs_cancel.
WITH clock AS MATERIALIZED (
    SELECT coalesce($10::timestamptz, now()) AS now
), mark AS MATERIALIZED (
    SELECT m.kind, m.priority, m.id,
           least(m.run_after, clock.now - make_interval(secs => 1 + coalesce(m.age_s, 0))) AS run_after
    FROM unnest($4::text[], $5::integer[], $6::timestamptz[], $7::uuid[], $8::double precision[])
         AS m(kind, priority, run_after, id, age_s)
    CROSS JOIN clock
), due AS (
    SELECT min(first.run_after) AS run_after
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
            ORDER BY o.run_after, o.id LIMIT 1
        ) AS next
        WHERE level.priority BETWEEN -2147483648 AND 2147483647
    ) AS first
)
SELECT extract(epoch FROM due.run_after - clock.now)::double precision AS next_due_s,
       EXISTS (SELECT FROM :"schema".open_jobs AS o
               WHERE o.state = 'leased' AND o.lease_until < clock.now
                 AND o.lease_until > coalesce(clock.now - make_interval(secs => 1 + $9), '-infinity'))
           OR EXISTS (SELECT FROM :"schema".open_jobs AS o
                      WHERE o.cancel_asked_at IS NOT NULL
                        AND o.cancel_asked_at < clock.now - make_interval(secs => $3)) AS expired,
       ARRAY(SELECT o.id FROM :"schema".open_jobs AS o
             WHERE o.cancel_asked_at IS NOT NULL AND o.leased_by = $2) AS cancels
FROM clock CROSS JOIN due
