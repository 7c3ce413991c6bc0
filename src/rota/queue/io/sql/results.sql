-- How some jobs stand, for whoever waits for their results. It reads the view, which needs the fewest rights.
-- Parameters: $1 ids uuid[].
-- Rows: id, state, result, last_error of each job that exists; one that is open has neither result nor error.
-- Locks: none.
-- Index: open_jobs_pkey, ended_jobs_pkey (BETWEEN: see finish.sql).
SELECT j.id, j.state, j.result, CASE WHEN j.finished_at IS NOT NULL THEN j.last_error END AS last_error
FROM unnest($1::uuid[]) AS given(id) JOIN :"schema".jobs AS j ON j.id BETWEEN given.id AND given.id
