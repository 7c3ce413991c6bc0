-- Writes the end of one job, as finish.sql does for many: for jobs whose ends are commits of their own, and for a
-- handler that ends its job in its own transaction, on a connection of any library. Fenced by epoch (I3).
-- Parameters: $1 id text (a uuid), $2 epoch bigint, $3 outcome text (done|failed|cancelled), $4 error text,
--   $5 result jsonb, $6 progress jsonb, $7 boolean: refuse it too if somebody asked to cancel the job,
--   $8 now timestamptz or null, $9 how the try ended text (null: as the outcome),
--   $10 holder text (null: whoever holds it).
-- Rows: id, state, batch_id of the job; none if it was refused: its lease is lost, or a cancel was asked for.
-- Locks: the row.
-- Index: open_jobs_pkey.
WITH ended AS (
    DELETE FROM :"schema".open_jobs AS j
    WHERE j.id = CAST(CAST($1 AS text) AS uuid) AND j.lease_epoch = CAST($2 AS bigint) AND j.state || '' = 'leased'
      AND j.leased_by = coalesce(CAST($10 AS text), j.leased_by)
      AND NOT (CAST($7 AS boolean) AND j.cancel_asked_at IS NOT NULL)
    RETURNING j.*
), tried AS (
    INSERT INTO :"schema".tries (job_id, epoch, started_at, progress_at, ended_at, holder, ended, error)
    SELECT id, lease_epoch, started_at, heartbeat_at, coalesce(CAST($8 AS timestamptz), now()), leased_by,
           coalesce(CAST($9 AS text), CAST($3 AS text)), CAST($4 AS text)
    FROM ended WHERE started_at IS NOT NULL AND (lease_epoch > 1 OR CAST($3 AS text) <> 'done')
)
INSERT INTO :"schema".ended_jobs AS e
    (id, run_after, created_at, started_at, heartbeat_at, finished_at, lease_epoch, priority, tries, max_tries,
     kind, state, place, tenant, dedupe_key, dedupe_scope, leased_by, last_error, execution_id, trace, payload,
     progress, result, parent_id, batch_id)
SELECT id, run_after, created_at, started_at, heartbeat_at, coalesce(CAST($8 AS timestamptz), now()), lease_epoch,
       priority, tries, max_tries, kind, CAST($3 AS text), place, tenant, dedupe_key, dedupe_scope, leased_by,
       coalesce(CAST($4 AS text), last_error), execution_id, trace, payload,
       coalesce(CAST(CAST($6 AS text) AS jsonb), progress), CAST(CAST($5 AS text) AS jsonb), parent_id, batch_id
FROM ended
RETURNING e.id, e.state, e.batch_id
