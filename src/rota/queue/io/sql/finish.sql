-- Writes the end of jobs: done, failed or cancelled. Fenced by epoch (I3). This runs for every job, so it does nothing
-- that only a job that goes on would need; those go through release.sql. A first run that went well leaves no try.
-- Parameters: $1 ids uuid[] (ascending), $2 epochs bigint[], $3 outcomes text[] (done|failed|cancelled),
--   $4 errors text[], $5 results jsonb[], $6 progress jsonb[], $7 now timestamptz or null,
--   $8 how the tries ended text[] (see tries), $9 holder text (null: whoever holds them).
--   Instead of an array, null says for all: done, no error, no result, the progress that is stored, as the outcome.
-- Rows: id, state, batch_id of each job that was written; one that does not come back was refused: its lease is lost.
-- Locks: the rows, in the order of the ids, as renew and release take them.
-- Index: open_jobs_pkey, one look for each id whatever the statistics say.
WITH given AS MATERIALIZED (
    SELECT g.id, g.epoch, coalesce(g.outcome, 'done') AS outcome, g.error, g.result, g.progress AS moved, g.how
    FROM unnest($1::uuid[], $2::bigint[], $3::text[], $4::text[], $5::jsonb[], $6::jsonb[], $8::text[])
         AS g(id, epoch, outcome, error, result, progress, how)
), ended AS (
    DELETE FROM :"schema".open_jobs AS j USING given
    -- BETWEEN, not =: it leaves one plan, a look by open_jobs_pkey for each given row, in their order. With = it may
    -- be a join that compares each with each, or one that locks in the order of the heap and meets renew in a deadlock.
    WHERE j.id BETWEEN given.id AND given.id AND j.lease_epoch = given.epoch AND j.state || '' = 'leased'
      AND j.leased_by = coalesce($9::text, j.leased_by)
    RETURNING j.*, given.outcome, given.error, given.result, given.moved, given.how
), tried AS (
    INSERT INTO :"schema".tries (job_id, epoch, started_at, progress_at, ended_at, holder, ended, error)
    SELECT id, lease_epoch, started_at, heartbeat_at, coalesce($7::timestamptz, now()), leased_by,
           coalesce(how, outcome), error
    FROM ended WHERE started_at IS NOT NULL AND (lease_epoch > 1 OR outcome <> 'done')
)
INSERT INTO :"schema".ended_jobs AS e
    (id, run_after, created_at, started_at, heartbeat_at, finished_at, lease_epoch, priority, tries, max_tries,
     kind, state, place, tenant, dedupe_key, dedupe_scope, leased_by, last_error, execution_id, trace, payload,
     progress, result, parent_id, batch_id)
SELECT id, run_after, created_at, started_at, heartbeat_at, coalesce($7::timestamptz, now()), lease_epoch, priority,
       tries, max_tries, kind, outcome, place, tenant, dedupe_key, dedupe_scope, leased_by,
       coalesce(error, last_error), execution_id, trace, payload, coalesce(moved, progress), result,
       parent_id, batch_id
FROM ended
RETURNING e.id, e.state, e.batch_id
