-- Shows one batch and how its jobs stand now.
-- Parameters: $1 id uuid.
-- Rows: one if there is such a batch: id, created_at, ended_at, jobs, then_kind, then_id, and counts of its jobs that
--   are there: open, done, failed, cancelled, expired.
-- Locks: none.
-- Index: batches_pkey, open_jobs_batch, ended_jobs_batch.
SELECT b.id, b.created_at, b.ended_at, b.jobs, b.then_kind, b.then_id,
       (SELECT count(*) FROM :"schema".open_jobs AS o WHERE o.batch_id = b.id) AS open,
       coalesce(b.done, ended.done) AS done, coalesce(b.failed, ended.failed) AS failed,
       coalesce(b.cancelled, ended.cancelled) AS cancelled, coalesce(b.expired, ended.expired) AS expired
FROM :"schema".batches AS b CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE e.state = 'done')::integer AS done,
           count(*) FILTER (WHERE e.state = 'failed')::integer AS failed,
           count(*) FILTER (WHERE e.state = 'cancelled')::integer AS cancelled,
           count(*) FILTER (WHERE e.state = 'expired')::integer AS expired
    FROM :"schema".ended_jobs AS e WHERE e.batch_id = b.id AND b.ended_at IS NULL
) AS ended
WHERE b.id = $1
