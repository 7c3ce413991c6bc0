-- Ends leases that ran out: back to the queue, failed on the last try, cancelled if somebody asked. It reads the job
-- rows alone: who held them, and whether that process lives, does not matter. Also ends jobs whose holder has not
-- answered a cancel within the grace; asking to cancel never moves the lease. Leases of runners are the gateways' own.
-- A job with a queued-scope key may have to wait for an uncommitted twin, so it is only named (its state stays leased)
-- until it is asked for alone.
-- Parameters: $1 how many at most integer, $2 cancel grace_s float8, $3 this job alone uuid or null,
--   $4 now timestamptz or null.
-- Rows, in the order of the ids: id, kind, epoch (of the lease that ended), holder, state (after; leased: ask for it
--   alone), tries, batch_id.
-- Locks: the rows, FOR UPDATE SKIP LOCKED; one that its holder is writing now is passed over.
-- Index: open_jobs_lease and open_jobs_cancel to find, open_jobs_pkey to write (BETWEEN: see finish.sql).
WITH clock AS MATERIALIZED (
    SELECT coalesce($4::timestamptz, now()) AS now
), ran_out AS MATERIALIZED (
    SELECT o.id, o.kind, o.lease_epoch, o.leased_by, o.tries, o.max_tries, o.lease_until, o.cancel_asked_at,
           o.last_error, o.dedupe_scope, o.dedupe_key, o.started_at, o.heartbeat_at, o.batch_id
    FROM :"schema".open_jobs AS o
    WHERE o.state = 'leased' AND o.place = 'worker' AND o.lease_until < (SELECT clock.now FROM clock)
      AND ($3::uuid IS NULL OR o.id = $3)
    ORDER BY o.lease_until LIMIT $1 FOR UPDATE SKIP LOCKED
), unanswered AS MATERIALIZED (
    SELECT o.id, o.kind, o.lease_epoch, o.leased_by, o.tries, o.max_tries, o.lease_until, o.cancel_asked_at,
           o.last_error, o.dedupe_scope, o.dedupe_key, o.started_at, o.heartbeat_at, o.batch_id
    FROM :"schema".open_jobs AS o
    WHERE o.state || '' = 'leased' AND o.place = 'worker' AND o.cancel_asked_at IS NOT NULL
      AND o.cancel_asked_at < (SELECT clock.now FROM clock) - make_interval(secs => $2)
      AND ($3::uuid IS NULL OR o.id = $3)
    LIMIT $1 FOR UPDATE SKIP LOCKED
), over AS MATERIALIZED (
    SELECT o.id, o.kind, o.lease_epoch, o.leased_by, o.tries, o.lease_until, o.started_at, o.heartbeat_at, o.batch_id,
           clock.now,
           CASE WHEN $3 IS NULL AND o.dedupe_scope = 'queued' THEN 'leased'
                WHEN o.cancel_asked_at IS NOT NULL THEN 'cancelled'
                WHEN o.tries >= coalesce(o.max_tries, 1) THEN 'failed'
                WHEN EXISTS (SELECT FROM :"schema".open_jobs AS twin
                             WHERE o.dedupe_scope = 'queued' AND twin.dedupe_scope = 'queued'
                               AND twin.state = 'queued' AND twin.dedupe_key = o.dedupe_key) THEN 'done'
                ELSE 'queued' END AS next_state,
           CASE WHEN o.cancel_asked_at IS NOT NULL THEN coalesce(o.last_error, 'Cancelled')
                WHEN o.tries >= coalesce(o.max_tries, 1) THEN 'The lease ran out on the last try'
                ELSE 'The lease ran out: ' || o.leased_by || ' wrote nothing until '
                     || to_char(o.lease_until AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS') || ' UTC' END AS error
    -- As they were when they were locked: a cancel may have come since the statement began.
    FROM (SELECT * FROM ran_out UNION SELECT * FROM unanswered) AS o CROSS JOIN clock
), ended AS (
    DELETE FROM :"schema".open_jobs AS j USING over
    WHERE j.id BETWEEN over.id AND over.id AND over.next_state NOT IN ('queued', 'leased')
    RETURNING j.*, over.next_state, over.error, over.now
), kept AS (
    INSERT INTO :"schema".ended_jobs
        (id, run_after, created_at, started_at, heartbeat_at, finished_at, lease_epoch, priority, tries, max_tries,
         kind, state, place, tenant, dedupe_key, dedupe_scope, leased_by, last_error, execution_id, trace, payload,
         progress, result, parent_id, batch_id, runs_until)
    SELECT id, run_after, created_at, started_at, heartbeat_at, now, lease_epoch, priority, tries, max_tries,
           kind, next_state, place, tenant, dedupe_key, dedupe_scope, leased_by, error,
           execution_id, trace, payload, progress, NULL, parent_id, batch_id,
           -- Its holder may not have heard of the cancel, and runs it until then.
           CASE WHEN next_state = 'cancelled' AND lease_until > now THEN lease_until END
    FROM ended
), back AS (
    UPDATE :"schema".open_jobs AS j
    SET state = 'queued', lease_until = NULL, last_error = over.error
    FROM over
    WHERE j.id BETWEEN over.id AND over.id AND over.next_state = 'queued'
), tried AS (
    INSERT INTO :"schema".tries (job_id, epoch, started_at, progress_at, ended_at, holder, ended, error)
    SELECT id, lease_epoch, started_at, heartbeat_at, least(lease_until, now), leased_by, 'lost', error
    FROM over WHERE next_state <> 'leased' AND started_at IS NOT NULL
)
SELECT over.id, over.kind, over.lease_epoch AS epoch, over.leased_by AS holder, over.next_state AS state, over.tries,
       over.batch_id
FROM over
ORDER BY over.id
