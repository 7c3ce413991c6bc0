-- Puts one ended job (failed, cancelled, expired) back into the queue with its tries at 0, or makes a queued job that
-- waits for its time due now. One whose holder may still run it, because it never answered a cancel, waits until that
-- holder's lease would have ended (I2). A job whose key another job holds stays as it is.
-- Parameters: $1 id uuid, $2 now timestamptz or null.
-- Rows: one if the job exists: id, outcome (queued, held, leased, done), holder uuid (of the key, where held). None
--   also for a job that was claimed or retried since the statement began: the next one sees it.
-- Locks: the row; waits for an uncommitted job with the same key.
-- Index: the primary keys and the unique keys.
WITH clock AS MATERIALIZED (
    SELECT coalesce($2::timestamptz, now()) AS now
), old AS MATERIALIZED (
    SELECT e.* FROM :"schema".ended_jobs AS e WHERE e.id = $1 FOR UPDATE
), holder AS MATERIALIZED (
    SELECT o.id FROM old JOIN :"schema".open_jobs AS o ON o.dedupe_key = old.dedupe_key
    WHERE old.state <> 'done' AND old.dedupe_scope = 'open' AND o.dedupe_scope = 'open'
    UNION ALL
    SELECT o.id FROM old JOIN :"schema".open_jobs AS o ON o.dedupe_key = old.dedupe_key
    WHERE old.state <> 'done' AND old.dedupe_scope = 'queued' AND o.dedupe_scope = 'queued' AND o.state = 'queued'
), again AS (
    INSERT INTO :"schema".open_jobs
        (id, run_after, created_at, started_at, heartbeat_at, lease_epoch, priority, tries, max_tries, kind, place,
         tenant, dedupe_key, dedupe_scope, leased_by, last_error, execution_id, trace, payload, progress,
         parent_id, batch_id)
    SELECT old.id, greatest(clock.now, old.runs_until), created_at, started_at, heartbeat_at, lease_epoch, priority, 0, max_tries, kind, place,
           tenant, dedupe_key, dedupe_scope, leased_by, last_error, execution_id, trace, payload, progress,
           parent_id, batch_id
    FROM old CROSS JOIN clock
    WHERE old.state <> 'done' AND NOT EXISTS (SELECT FROM holder)
    ON CONFLICT DO NOTHING
    RETURNING id, kind
), gone AS (
    DELETE FROM :"schema".ended_jobs AS e USING again WHERE e.id = again.id
), sooner AS (
    UPDATE :"schema".open_jobs AS j
    SET run_after = least(j.run_after, clock.now)
    FROM clock
    WHERE j.id = $1 AND j.state = 'queued'
    RETURNING j.id, j.kind
), woken AS (
    SELECT :"schema".wake(array_agg(woken.kind))
    FROM (SELECT kind FROM again UNION ALL SELECT kind FROM sooner) AS woken
    HAVING count(*) > 0
)
SELECT again.id, 'queued' AS outcome, NULL::uuid AS holder, (SELECT count(*) FROM woken) AS woken FROM again
UNION ALL
SELECT sooner.id, 'queued', NULL, (SELECT count(*) FROM woken) FROM sooner
UNION ALL
SELECT old.id, CASE old.state WHEN 'done' THEN 'done' ELSE 'held' END, (SELECT holder.id FROM holder), 0
FROM old WHERE NOT EXISTS (SELECT FROM again)
UNION ALL
SELECT o.id, 'leased', NULL, 0 FROM :"schema".open_jobs AS o WHERE o.id = $1 AND o.state || '' = 'leased'
