-- Shows the tries that are kept of some jobs.
-- Parameters: $1 ids uuid[], $2 now timestamptz or null.
-- Rows: the columns of tries, by job and epoch; overlap_s float8: how long it ran beside later runs by other holders.
-- Locks: none.
-- Index: tries_pkey (BETWEEN: see finish.sql).
SELECT t.job_id, t.epoch, t.holder, t.started_at, t.progress_at, t.ended_at, t.stopped_at, t.ended, t.error,
       :"schema".overlap_s(t.job_id, t.epoch, t.holder, t.stopped_at, $2::timestamptz) AS overlap_s
FROM unnest($1::uuid[]) AS given(id) CROSS JOIN LATERAL (
    SELECT * FROM :"schema".tries AS t WHERE t.job_id BETWEEN given.id AND given.id
) AS t
ORDER BY t.job_id, t.epoch
