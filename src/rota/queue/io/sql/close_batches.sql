-- Closes batches that have no open job any more, and adds their follow-ups: one for each batch, ever. Whoever ended a
-- job of a batch asks after that commit, so of two that end the last two jobs at the same moment at least one sees
-- both ended, and the row of the batch decides which of them adds the follow-up. A worker that died in between is
-- made up for by the others, which ask for all open batches now and then.
-- An object that is the follow-up's payload gets a field "batch": id, jobs, done, failed, cancelled, expired.
-- Parameters: $1 ids uuid[] or null for any, $2 how many at most integer, $3 now timestamptz or null.
-- Rows: id, then_id (null: no follow-up) of each batch that was closed.
-- Locks: the batches, FOR UPDATE SKIP LOCKED: who holds one is about to close it.
-- Index: batches_open or batches_pkey, then open_jobs_batch and ended_jobs_batch.
WITH over AS MATERIALIZED (
    SELECT b.* FROM :"schema".batches AS b
    WHERE b.ended_at IS NULL AND ($1::uuid[] IS NULL OR b.id = ANY ($1))
      AND NOT EXISTS (SELECT FROM :"schema".open_jobs AS o WHERE o.batch_id = b.id)
    ORDER BY b.id LIMIT $2
    FOR UPDATE SKIP LOCKED
), counted AS MATERIALIZED (
    SELECT over.id, ended.*
    FROM over CROSS JOIN LATERAL (
        SELECT count(*) FILTER (WHERE e.state = 'done')::integer AS done,
               count(*) FILTER (WHERE e.state = 'failed')::integer AS failed,
               count(*) FILTER (WHERE e.state = 'cancelled')::integer AS cancelled,
               count(*) FILTER (WHERE e.state = 'expired')::integer AS expired
        FROM :"schema".ended_jobs AS e WHERE e.batch_id = over.id
    ) AS ended
), followed AS MATERIALIZED (
    SELECT over.id, added.id AS then_id
    FROM over JOIN counted ON counted.id = over.id CROSS JOIN LATERAL :"schema".enqueue(
        over.then_kind,
        CASE jsonb_typeof(over.then_payload) WHEN 'object' THEN over.then_payload || jsonb_build_object(
            'batch', jsonb_build_object('id', over.id, 'jobs', over.jobs, 'done', counted.done,
                                        'failed', counted.failed, 'cancelled', counted.cancelled,
                                        'expired', counted.expired))
        ELSE over.then_payload END,
        over.then_priority, over.then_tenant, max_tries => over.then_max_tries, trace => over.then_trace,
        at => $3::timestamptz) AS added
    WHERE over.then_kind IS NOT NULL
)
UPDATE :"schema".batches AS b
SET ended_at = coalesce($3::timestamptz, now()), done = counted.done, failed = counted.failed,
    cancelled = counted.cancelled, expired = counted.expired, then_id = followed.then_id
FROM counted LEFT JOIN followed ON followed.id = counted.id
WHERE b.id = counted.id
RETURNING b.id, b.then_id
