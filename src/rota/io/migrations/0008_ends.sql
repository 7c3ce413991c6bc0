-- Writes the ends of jobs one by one, each in a commit of its own, in one call: for kinds whose ends share no commit.
-- The statement is that of finish_one.sql. A call costs a round trip and the choice of a plan once, and the server half
-- of what so many statements would; each end is on disk before the next begins. What was written before a failure stays.
-- It has to be called outside a transaction.
-- Parameters, one element for each job: ids, epochs (I3), outcomes (done|failed|cancelled), errors, results, progress
--   (null: what is stored), how the tries ended (null: as the outcome). over_at: null for the database's clock.
-- Answers: written: the ids of those that were not refused; batches: the batches that these belong to.
CREATE PROCEDURE :"schema".finish_each(
    ids uuid[], epochs bigint[], outcomes text[], errors text[], results jsonb[], moved jsonb[], hows text[],
    over_at timestamptz, INOUT written uuid[] DEFAULT NULL, INOUT batches uuid[] DEFAULT NULL
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    ended_id uuid;
    in_batch uuid;
BEGIN
    written := '{}';
    batches := '{}';
    FOR n IN 1 .. cardinality(ids) LOOP
        WITH ended AS (
            DELETE FROM :"schema".open_jobs AS j
            WHERE j.id = ids[n] AND j.lease_epoch = epochs[n] AND j.state || '' = 'leased'
            RETURNING j.*
        ), tried AS (
            INSERT INTO :"schema".tries (job_id, epoch, started_at, progress_at, ended_at, holder, ended, error)
            SELECT id, lease_epoch, started_at, heartbeat_at, coalesce(over_at, now()), leased_by,
                   coalesce(hows[n], outcomes[n]), errors[n]
            FROM ended WHERE started_at IS NOT NULL AND (lease_epoch > 1 OR outcomes[n] <> 'done')
        )
        INSERT INTO :"schema".ended_jobs AS e
            (id, run_after, created_at, started_at, heartbeat_at, finished_at, lease_epoch, priority, tries, max_tries,
             kind, state, place, tenant, dedupe_key, dedupe_scope, leased_by, last_error, execution_id, trace, payload,
             progress, result, parent_id, batch_id)
        SELECT id, run_after, created_at, started_at, heartbeat_at, coalesce(over_at, now()), lease_epoch,
               priority, tries, max_tries, kind, outcomes[n], place, tenant, dedupe_key, dedupe_scope, leased_by,
               coalesce(errors[n], last_error), execution_id, trace, payload,
               coalesce(moved[n], progress), results[n], parent_id, batch_id
        FROM ended
        RETURNING e.id, e.batch_id INTO ended_id, in_batch;
        IF ended_id IS NOT NULL THEN
            written := written || ended_id;
            IF in_batch IS NOT NULL THEN
                batches := batches || in_batch;
            END IF;
        END IF;
        COMMIT;
    END LOOP;
END $$;
