-- How long runs of one job by different holders have overlapped, in all, as far as tries are kept. It has to be 0.
-- Parameters: $1 now timestamptz or null.
-- Rows: one: overlap_s float8.
-- Locks: none.
-- Index: tries_stopped, tries_pkey, open_jobs_pkey.
SELECT coalesce(sum(:"schema".overlap_s(t.job_id, t.epoch, t.holder, t.stopped_at, $1::timestamptz)), 0) AS overlap_s
FROM :"schema".tries AS t
WHERE t.stopped_at IS NOT NULL
