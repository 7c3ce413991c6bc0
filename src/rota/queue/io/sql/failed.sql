-- Names failed jobs, one page in the order of their ids.
-- Parameters: $1 kinds text[] (null: any), $2 ended within so many seconds float8 (null: ever), $3 above uuid (null:
--   from the first), $4 how many at most integer, $5 now timestamptz or null.
-- Rows: id, keyed boolean (it has a key that another job may hold by now).
-- Locks: none.
-- Index: ended_jobs_not_done.
SELECT e.id, e.dedupe_scope IN ('open', 'queued') IS TRUE AS keyed
FROM :"schema".ended_jobs AS e
WHERE e.state = 'failed'
  AND ($1::text[] IS NULL OR e.kind = ANY ($1))
  AND ($2::double precision IS NULL
       OR e.finished_at >= coalesce($5::timestamptz, now()) - make_interval(secs => $2))
  AND ($3::uuid IS NULL OR e.id > $3)
ORDER BY e.id
LIMIT $4
