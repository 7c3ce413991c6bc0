-- Cancels jobs: a queued one at once; a leased one is marked, its holder is told, and it ends when the holder answers
-- or after the sweep's grace. Asking again only tells the holder again.
-- Parameters: $1 ids uuid[] (ascending), $2 reason text, $3 now timestamptz or null.
-- Rows: id, batch_id, state (cancelled, or leased where the holder was asked) of each open job among them.
-- Locks: the rows, in the order of the ids.
-- Index: open_jobs_pkey, one look for each id whatever the statistics say (BETWEEN: see finish.sql).
WITH clock AS MATERIALIZED (
    SELECT coalesce($3::timestamptz, now()) AS now
), held AS MATERIALIZED (
    SELECT given.id, locked.state, locked.leased_by, locked.batch_id
    FROM unnest($1::uuid[]) AS given(id) CROSS JOIN LATERAL (
        SELECT o.state, o.leased_by, o.batch_id FROM :"schema".open_jobs AS o WHERE o.id = given.id FOR UPDATE
    ) AS locked
), ended AS (
    DELETE FROM :"schema".open_jobs AS j USING held
    WHERE j.id BETWEEN held.id AND held.id AND held.state = 'queued'
    RETURNING j.*
), kept AS (
    INSERT INTO :"schema".ended_jobs
        (id, run_after, created_at, started_at, heartbeat_at, finished_at, lease_epoch, priority, tries, max_tries,
         kind, state, place, tenant, dedupe_key, dedupe_scope, leased_by, last_error, execution_id, trace, payload,
         progress, result, parent_id, batch_id)
    SELECT id, run_after, created_at, started_at, heartbeat_at, clock.now, lease_epoch, priority, tries, max_tries,
           kind, 'cancelled', place, tenant, dedupe_key, dedupe_scope, leased_by, $2, execution_id, trace, payload,
           progress, NULL, parent_id, batch_id
    FROM ended CROSS JOIN clock
), asked AS (
    UPDATE :"schema".open_jobs AS j
    SET cancel_asked_at = coalesce(j.cancel_asked_at, clock.now),
        last_error = CASE WHEN j.cancel_asked_at IS NULL THEN $2 ELSE j.last_error END
    FROM held CROSS JOIN clock
    WHERE j.id BETWEEN held.id AND held.id AND held.state = 'leased'
    RETURNING j.leased_by
), told AS (
    SELECT pg_notify(:'channel', '!' || leased_by) FROM (SELECT DISTINCT leased_by FROM asked) AS holder
)
SELECT held.id, held.batch_id, CASE held.state WHEN 'queued' THEN 'cancelled' ELSE held.state END AS state,
       (SELECT count(*) FROM told) AS told
FROM held
