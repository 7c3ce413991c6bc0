-- Returns jobs to the queue: after a failed try, which counts, or by yield, snooze, give back and reject, which do not,
-- or after a run that went well and wants to be run again as the same row, whose tries begin anew.
-- Fenced by epoch (I3). A returned job whose queued-scope twin already waits ends done: the twin does the work.
-- Parameters: $1 ids uuid[] (ascending), $2 epochs bigint[], $3 counted boolean[] (null: none), $4 waits_s float8[]
--   (null: keep run_after and with it the place in line), $5 reasons text[] (null: keep last_error),
--   $6 progress jsonb[] (null: keep it), $7 afresh boolean[] (null: none): tries at 0, no last_error, and no try to keep,
--   $8 now timestamptz or null, $9 how the tries ended text[] (null: retry or, where it does not count, given_back),
--   $10 tries kept of a job integer, $11 holder text (null: whoever holds them).
-- Rows: id, state, batch_id of each job that was written; one that does not come back was refused: its lease is lost.
-- Locks: the rows, in the order of the ids, as renew and finish take them.
-- Index: open_jobs_pkey, one look for each id whatever the statistics say (BETWEEN: see finish.sql);
--   open_jobs_queued_key for a twin; tries_pkey.
WITH given AS MATERIALIZED (
    SELECT g.id, g.epoch, CASE WHEN g.counted THEN 0 ELSE 1 END AS uncounted, g.wait_s, g.reason, g.progress AS moved,
           coalesce(g.how, CASE WHEN g.counted THEN 'retry' ELSE 'given_back' END) AS how,
           coalesce(g.afresh, false) AS afresh, coalesce($8::timestamptz, now()) AS now
    FROM unnest($1::uuid[], $2::bigint[], $3::boolean[], $4::double precision[], $5::text[], $6::jsonb[],
                $7::boolean[], $9::text[])
         AS g(id, epoch, counted, wait_s, reason, progress, afresh, how)
), held AS MATERIALIZED (
    SELECT given.*, locked.batch_id, locked.started_at, locked.heartbeat_at, locked.leased_by,
           CASE WHEN locked.cancel_asked_at IS NOT NULL THEN 'cancelled'
                WHEN EXISTS (SELECT FROM :"schema".open_jobs AS twin
                             WHERE locked.dedupe_scope = 'queued' AND twin.dedupe_scope = 'queued'
                               AND twin.state = 'queued' AND twin.dedupe_key = locked.dedupe_key) THEN 'done'
                ELSE 'queued' END AS next_state
    FROM given CROSS JOIN LATERAL (
        SELECT o.dedupe_scope, o.dedupe_key, o.cancel_asked_at, o.batch_id, o.started_at, o.heartbeat_at, o.leased_by
        FROM :"schema".open_jobs AS o
        WHERE o.id = given.id AND o.lease_epoch = given.epoch AND o.state || '' = 'leased'
          AND o.leased_by = coalesce($11::text, o.leased_by)
        FOR UPDATE
    ) AS locked
), ended AS (
    DELETE FROM :"schema".open_jobs AS j USING held
    WHERE j.id BETWEEN held.id AND held.id AND held.next_state <> 'queued'
    RETURNING j.*, held.next_state, held.uncounted, held.reason, held.moved, held.now
), kept AS (
    INSERT INTO :"schema".ended_jobs
        (id, run_after, created_at, started_at, heartbeat_at, finished_at, lease_epoch, priority, tries, max_tries,
         kind, state, place, tenant, dedupe_key, dedupe_scope, leased_by, last_error, execution_id, trace, payload,
         progress, result, parent_id, batch_id)
    SELECT id, run_after, created_at, started_at, heartbeat_at, now, lease_epoch, priority,
           greatest(tries - uncounted, 0), max_tries, kind, next_state, place, tenant, dedupe_key, dedupe_scope,
           leased_by, coalesce(reason, last_error), execution_id, trace, payload, coalesce(moved, progress), NULL,
           parent_id, batch_id
    FROM ended
), back AS (
    UPDATE :"schema".open_jobs AS j
    SET state = 'queued',
        lease_until = NULL,
        tries = CASE WHEN held.afresh THEN 0 ELSE greatest(j.tries - held.uncounted, 0) END,
        run_after = coalesce(held.now + make_interval(secs => held.wait_s), j.run_after),
        last_error = CASE WHEN held.afresh THEN NULL ELSE coalesce(held.reason, j.last_error) END,
        progress = coalesce(held.moved, j.progress)
    FROM held
    WHERE j.id BETWEEN held.id AND held.id AND held.next_state = 'queued'
), tried AS (
    INSERT INTO :"schema".tries (job_id, epoch, started_at, progress_at, ended_at, holder, ended, error)
    SELECT id, epoch, started_at, heartbeat_at, now, leased_by, how, reason FROM held
    WHERE NOT held.afresh AND held.started_at IS NOT NULL
), forgotten AS (
    -- A job that yields and snoozes for years leaves no more than its last runs.
    DELETE FROM :"schema".tries AS t USING held
    WHERE t.job_id BETWEEN held.id AND held.id AND t.epoch <= held.epoch - $10
)
SELECT held.id, held.next_state AS state, held.batch_id FROM held
