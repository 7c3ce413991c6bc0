-- Counts the due jobs of some kinds that no worker has claimed and that are more urgent than a call of no job. It changes
-- nothing.
-- Parameters: $1 priority integer, $2 kinds text[], $3 jobs that are counted at most integer, $4 now timestamptz or null.
-- Rows: one: unclaimed bigint.
-- Locks: none.
-- Index: open_jobs_next.
SELECT count(*) AS unclaimed
FROM (
    SELECT 1
    FROM :"schema".open_jobs AS o
    WHERE o.state = 'queued' AND o.place = 'worker' AND o.kind = ANY ($2)
      AND o.run_after <= coalesce($4::timestamptz, now()) AND o.priority > $1
    LIMIT $3
) AS above
