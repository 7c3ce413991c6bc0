-- Counts failed jobs.
-- Parameters: $1 kinds text[] (null: any), $2 ended within so many seconds float8 (null: ever), $3 now or null.
-- Rows: kind, count bigint of each kind that has some, in the order of the kinds.
-- Locks: none.
-- Index: ended_jobs_not_done.
SELECT e.kind, count(*) AS count
FROM :"schema".ended_jobs AS e
WHERE e.state = 'failed'
  AND ($1::text[] IS NULL OR e.kind = ANY ($1))
  AND ($2::double precision IS NULL
       OR e.finished_at >= coalesce($3::timestamptz, now()) - make_interval(secs => $2))
GROUP BY e.kind
ORDER BY e.kind
