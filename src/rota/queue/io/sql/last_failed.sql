-- The jobs that failed last.
-- Parameters: $1 tenant text or null (a tenant's and those without one; null: all), $2 how many at most integer,
--   $3 characters of an error at most integer.
-- Rows, the newest first: id, kind, tenant, tries, finished_at, error.
-- Locks: none.
-- Index: ended_jobs_not_done, which holds the failed ones alone.
SELECT e.id, e.kind, e.tenant, e.tries, e.finished_at, left(coalesce(e.last_error, ''), $3) AS error
FROM :"schema".ended_jobs AS e
WHERE e.state = 'failed'
  AND ($1::text IS NULL OR e.tenant IS NULL OR e.tenant = $1)
ORDER BY e.finished_at DESC, e.id DESC
LIMIT $2
