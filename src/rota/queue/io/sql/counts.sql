-- Counts jobs by kind and state, in one grouped query: for metrics, lists of an operator and the live view.
-- Parameters: $1 ended jobs too boolean, $2 tenant text or null (a tenant's and those without one; null: all),
--   $3 how many rows at most integer, $4 now timestamptz or null.
-- Rows, the most jobs first: kind, state, count, due (queued, and their time has come), oldest_due_s float8 (null: none
--   is due), overdue (leased, and the lease has run out).
-- Locks: none.
-- Index: none helps to count a table; whoever asks often keeps the answer for a while.
WITH clock AS MATERIALIZED (
    SELECT coalesce($4::timestamptz, now()) AS now
)
SELECT o.kind, o.state, count(*) AS count,
       count(*) FILTER (WHERE o.state = 'queued' AND o.run_after <= clock.now) AS due,
       extract(epoch FROM clock.now - min(greatest(o.run_after, '0001-01-02 00:00+00'))
               FILTER (WHERE o.state = 'queued' AND o.run_after <= clock.now))
           ::double precision AS oldest_due_s,
       count(*) FILTER (WHERE o.state = 'leased' AND o.lease_until < clock.now) AS overdue
FROM :"schema".open_jobs AS o CROSS JOIN clock
WHERE $2::text IS NULL OR o.tenant IS NULL OR o.tenant = $2
GROUP BY o.kind, o.state, clock.now
UNION ALL
SELECT e.kind, e.state, count(*), 0, NULL, 0
FROM :"schema".ended_jobs AS e
WHERE $1::boolean AND ($2::text IS NULL OR e.tenant IS NULL OR e.tenant = $2)
GROUP BY e.kind, e.state
ORDER BY count DESC, kind, state
LIMIT $3
