-- Writes how tries ended: done, failed, cancelled, or retry (back to the queue after a wait). Fenced by epoch (I3).
-- A retried job whose queued-scope twin already waits ends done: the twin does the work.
-- Parameters: $1 ids uuid[] (ascending), $2 epochs bigint[], $3 outcomes text[] (done|failed|cancelled|retry),
--   $4 errors text[], $5 results jsonb[], $6 waits_s float8[] (for retry), $7 now timestamptz or null.
--   Instead of an array, null says for all: done, no error, no result, no wait.
-- Rows: id, state of each job that was written; one that does not come back was refused: its lease is lost.
-- Locks: the rows, in the order of the ids, as renew and release take them.
-- Index: open_jobs_pkey, one look for each id whatever the statistics say (the arrays, and rota.io.postgres);
--   open_jobs_queued_key for a twin.
WITH given AS MATERIALIZED (
    SELECT g.id, g.epoch, coalesce(g.outcome, 'done') AS outcome, g.error, g.result, coalesce(g.wait_s, 0) AS wait_s,
           coalesce($7::timestamptz, now()) AS now
    FROM unnest($1::uuid[], $2::bigint[], $3::text[], $4::text[], $5::jsonb[], $6::double precision[])
         AS g(id, epoch, outcome, error, result, wait_s)
), held AS MATERIALIZED (
    SELECT given.*, CASE WHEN given.outcome <> 'retry' THEN given.outcome
                         WHEN locked.cancel_asked_at IS NOT NULL THEN 'cancelled'
                         WHEN EXISTS (SELECT FROM :"schema".open_jobs AS twin
                                      WHERE locked.dedupe_scope = 'queued' AND twin.dedupe_scope = 'queued'
                                        AND twin.state = 'queued' AND twin.dedupe_key = locked.dedupe_key) THEN 'done'
                         ELSE 'queued' END AS next_state
    FROM given CROSS JOIN LATERAL (
        SELECT o.dedupe_scope, o.dedupe_key, o.cancel_asked_at FROM :"schema".open_jobs AS o
        WHERE o.id = given.id AND o.lease_epoch = given.epoch AND o.state || '' = 'leased'
        FOR UPDATE
    ) AS locked
), ended AS (
    DELETE FROM :"schema".open_jobs AS j USING held
    WHERE j.id = held.id AND j.id = ANY (ARRAY(SELECT held.id FROM held)) AND held.next_state <> 'queued'
    RETURNING j.*, held.next_state, held.error, held.result, held.now
), kept AS (
    INSERT INTO :"schema".ended_jobs
        (id, run_after, created_at, started_at, heartbeat_at, finished_at, lease_epoch, priority, tries, max_tries,
         kind, state, place, tenant, dedupe_key, dedupe_scope, leased_by, last_error, execution_id, trace, payload,
         progress, result)
    SELECT id, run_after, created_at, started_at, heartbeat_at, now, lease_epoch, priority, tries, max_tries,
           kind, next_state, place, tenant, dedupe_key, dedupe_scope, leased_by, coalesce(error, last_error),
           execution_id, trace, payload, progress, result
    FROM ended
), back AS (
    UPDATE :"schema".open_jobs AS j
    SET state = 'queued',
        lease_until = NULL,
        run_after = held.now + make_interval(secs => held.wait_s),
        last_error = coalesce(held.error, j.last_error)
    FROM held
    WHERE j.id = held.id AND j.id = ANY (ARRAY(SELECT held.id FROM held)) AND held.next_state = 'queued'
)
SELECT held.id, held.next_state AS state FROM held
