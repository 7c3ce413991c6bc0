-- Finds the job that holds a key, and so answers an enqueue in its place.
-- Parameters: $1 key text.
-- Rows, at most one for each scope: id, scope, and exists boolean (false: a forever key whose job is gone).
-- Locks: none.
-- Index: open_jobs_open_key, open_jobs_queued_key, forever_keys_pkey.
SELECT o.id, o.dedupe_scope AS scope, true AS exists FROM :"schema".open_jobs AS o
WHERE o.dedupe_scope = 'open' AND o.dedupe_key = $1
UNION ALL
SELECT o.id, o.dedupe_scope, true FROM :"schema".open_jobs AS o
WHERE o.dedupe_scope = 'queued' AND o.state = 'queued' AND o.dedupe_key = $1
UNION ALL
SELECT f.job_id, 'forever', EXISTS (SELECT FROM :"schema".open_jobs AS o WHERE o.id = f.job_id)
                            OR EXISTS (SELECT FROM :"schema".ended_jobs AS e WHERE e.id = f.job_id)
FROM :"schema".forever_keys AS f
WHERE f.dedupe_key = $1
