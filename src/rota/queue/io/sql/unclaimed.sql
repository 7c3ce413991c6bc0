-- Counts the due jobs of some kinds that no worker has claimed and that go before a job: all that are more urgent, and, if
-- it is queued itself, also those that are as urgent and were due earlier. It changes nothing.
-- Parameters: $1 job uuid, $2 kinds text[], $3 jobs that are counted at most integer, $4 now timestamptz or null.
-- Rows: for each kind that has such jobs: kind, unclaimed bigint; none if there is no such job, or it has ended.
-- Locks: none.
-- Index: open_jobs_pkey, open_jobs_next.
WITH clock AS MATERIALIZED (
    SELECT coalesce($4::timestamptz, now()) AS now
), job AS MATERIALIZED (
    SELECT o.id, o.priority, o.run_after, o.state FROM :"schema".open_jobs AS o WHERE o.id = $1
)
SELECT before.kind, count(*) AS unclaimed
FROM (
    SELECT o.kind
    FROM job CROSS JOIN clock CROSS JOIN :"schema".open_jobs AS o
    WHERE o.state = 'queued' AND o.place = 'worker' AND o.kind = ANY ($2) AND o.run_after <= clock.now
      AND (o.priority > job.priority
           OR job.state = 'queued' AND o.priority = job.priority AND (o.run_after, o.id) < (job.run_after, job.id))
    LIMIT $3
) AS before
GROUP BY before.kind
