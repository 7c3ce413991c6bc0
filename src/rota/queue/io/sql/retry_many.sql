-- Puts failed jobs without a key of their own back into the queue, with their tries at 0. One with a key goes through
-- retry.sql, alone, because it may have to wait for another job of its key.
-- Parameters: $1 ids uuid[] (ascending), $2 now timestamptz or null.
-- Rows: id of each job that is queued now.
-- Locks: the rows, in the order of the ids.
-- Index: ended_jobs_pkey.
WITH old AS (
    DELETE FROM :"schema".ended_jobs AS e USING unnest($1::uuid[]) AS given(id)
    WHERE e.id BETWEEN given.id AND given.id AND e.state = 'failed'
      AND e.dedupe_scope IN ('open', 'queued') IS NOT TRUE
    RETURNING e.*
), again AS (
    INSERT INTO :"schema".open_jobs
        (id, run_after, created_at, started_at, heartbeat_at, lease_epoch, priority, tries, max_tries, kind, place,
         tenant, dedupe_key, dedupe_scope, leased_by, last_error, execution_id, trace, payload, progress,
         parent_id, batch_id)
    SELECT id, coalesce($2::timestamptz, now()), created_at, started_at, heartbeat_at, lease_epoch, priority, 0,
           max_tries, kind, place, tenant, dedupe_key, dedupe_scope, leased_by, last_error, execution_id, trace,
           payload, progress, parent_id, batch_id
    FROM old
    RETURNING id, kind
), woken AS (
    SELECT :"schema".wake(array_agg(DISTINCT again.kind), $2::timestamptz) FROM again HAVING count(*) > 0
)
SELECT again.id, (SELECT count(*) FROM woken) AS woken FROM again
