-- How far the rate of a kind is used: jobs that started in its last window. Asked only for a kind that has one.
-- Parameters: $1 kind text, $2 the window's seconds float8, $3 now timestamptz or null.
-- Rows: one: started bigint, opens_in_s float8 (when the oldest of these leaves the window; null: none started).
-- Locks: none.
-- Index: starts_pkey.
WITH clock AS MATERIALIZED (
    SELECT coalesce($3::timestamptz, now()) AS now
)
SELECT coalesce(sum(s.jobs), 0)::bigint AS started,
       extract(epoch FROM min(s.slice_at) + make_interval(secs => $2 * 61 / 60) - clock.now)::double precision
           AS opens_in_s
FROM clock LEFT JOIN :"schema".starts AS s
    ON s.kind = $1 AND s.slice_at > :"schema".slice_at(clock.now, $2) - make_interval(secs => $2 * 60.5 / 60)
GROUP BY clock.now
