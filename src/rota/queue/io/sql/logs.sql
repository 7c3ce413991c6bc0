-- Shows the lines that are kept of some jobs, in the order in which they were said.
-- Parameters: $1 ids uuid[], $2 how many of each job at most integer (the last ones).
-- Rows: the columns of job_logs, by job, epoch and number.
-- Locks: none.
-- Index: job_logs_pkey.
SELECT l.job_id, l.epoch, l.number, l.logged_at, l.level, l.event, l.fields
FROM unnest($1::uuid[]) AS given(id) CROSS JOIN LATERAL (
    SELECT * FROM :"schema".job_logs AS l WHERE l.job_id = given.id
    ORDER BY l.epoch DESC, l.number DESC LIMIT $2
) AS l
ORDER BY l.job_id, l.epoch, l.number
