-- Counts the jobs that ended lately, by kind and state.
-- Parameters: $1 within so many seconds float8, $2 tenant text or null (a tenant's and those without one; null: all),
--   $3 now timestamptz or null.
-- Rows: kind, state, count.
-- Locks: none.
-- Index: ended_jobs_finished (rows lie in the order in which they ended).
SELECT e.kind, e.state, count(*) AS count
FROM :"schema".ended_jobs AS e
WHERE e.finished_at > coalesce($3::timestamptz, now()) - make_interval(secs => $1)
  AND ($2::text IS NULL OR e.tenant IS NULL OR e.tenant = $2)
GROUP BY e.kind, e.state
ORDER BY e.kind, e.state
