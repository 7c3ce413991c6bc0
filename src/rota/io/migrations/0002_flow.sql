-- Flow: which job added which, and which jobs belong together.
--
-- A job that another job added as its child names its parent; jobs that were added as one batch name the batch. Both
-- are kept when the job ends. Jobs without either pay nothing: the indexes hold only rows that have one.

ALTER TABLE :"schema".open_jobs ADD COLUMN parent_id uuid, ADD COLUMN batch_id uuid;
ALTER TABLE :"schema".ended_jobs ADD COLUMN parent_id uuid, ADD COLUMN batch_id uuid;

CREATE INDEX open_jobs_parent ON :"schema".open_jobs (parent_id) WHERE parent_id IS NOT NULL;
CREATE INDEX ended_jobs_parent ON :"schema".ended_jobs (parent_id) WHERE parent_id IS NOT NULL;
CREATE INDEX open_jobs_batch ON :"schema".open_jobs (batch_id) WHERE batch_id IS NOT NULL;
CREATE INDEX ended_jobs_batch ON :"schema".ended_jobs (batch_id) WHERE batch_id IS NOT NULL;

CREATE OR REPLACE VIEW :"schema".jobs AS
    SELECT id, kind, tenant, payload, priority, dedupe_key, dedupe_scope, run_after, state, leased_by, lease_epoch,
           lease_until, heartbeat_at, tries, max_tries, last_error, created_at, started_at,
           NULL::timestamptz AS finished_at, NULL::jsonb AS result, progress, trace, place, execution_id,
           cancel_asked_at, parent_id, batch_id
    FROM :"schema".open_jobs
    UNION ALL
    SELECT id, kind, tenant, payload, priority, dedupe_key, dedupe_scope, run_after, state, leased_by, lease_epoch,
           NULL, heartbeat_at, tries, max_tries, last_error, created_at, started_at,
           finished_at, result, progress, trace, place, execution_id,
           NULL, parent_id, batch_id
    FROM :"schema".ended_jobs;

-- The functions that add jobs take the two, so they have other parameters than before.
DROP FUNCTION :"schema".enqueue(
    text, jsonb, integer, text, text, text, timestamptz, double precision, integer, text, text, text, timestamptz);
DROP FUNCTION :"schema".enqueue_many(
    text[], jsonb[], integer[], text[], text[], text[], timestamptz[], double precision[], integer[], text[], text[],
    text[], timestamptz);

-- Adds jobs inside the caller's transaction: element n of each array is job n. A null array means the default for
-- all of its jobs. Rows in the same order: number (from 1), id, created; created is false when another job holds
-- the key, and id is then that job's. An insert that meets an uncommitted twin waits for its fate.
CREATE FUNCTION :"schema".enqueue_many(
    kinds text[], payloads jsonb[], priorities integer[] DEFAULT NULL, tenants text[] DEFAULT NULL,
    dedupe_keys text[] DEFAULT NULL, dedupe_scopes text[] DEFAULT NULL, run_afters timestamptz[] DEFAULT NULL,
    delays_s double precision[] DEFAULT NULL, max_tries integer[] DEFAULT NULL, traces text[] DEFAULT NULL,
    places text[] DEFAULT NULL, execution_ids text[] DEFAULT NULL, parent_ids uuid[] DEFAULT NULL,
    batch_ids uuid[] DEFAULT NULL, at timestamptz DEFAULT NULL
) RETURNS TABLE (number integer, id uuid, created boolean)
    LANGUAGE plpgsql VOLATILE AS $function$
#variable_conflict use_column
DECLARE
    clock   timestamptz := coalesce(at, now());
    base    timestamptz := coalesce(at, clock_timestamp());
    tail    text := :"schema".uuid_v7_tail();
    new_ids uuid[] := ARRAY(SELECT (:"schema".uuid_v7_head(base, n) || tail)::uuid
                            FROM generate_series(1, cardinality(kinds)) AS n);
    holders uuid[] := new_ids;
    missing uuid[] := new_ids;
    allowed uuid[];  -- null: all of them, as in the first round without forever keys
    added   uuid[];
BEGIN
    WHILE cardinality(missing) > 0 LOOP
        IF 'forever' = ANY (dedupe_scopes) THEN
            -- In the order of the keys, here and below, so that two callers with the same keys cannot deadlock.
            WITH once AS (
                INSERT INTO :"schema".forever_keys AS f (dedupe_key, job_id, created_at)
                SELECT j.key, j.id, clock
                FROM unnest(new_ids, dedupe_keys, dedupe_scopes) WITH ORDINALITY AS j(id, key, scope, n)
                WHERE j.scope = 'forever' AND length(j.key) BETWEEN 1 AND 500 AND j.id = ANY (missing)
                ORDER BY j.key, j.n
                ON CONFLICT DO NOTHING
                RETURNING f.job_id
            )
            SELECT coalesce(array_agg(j.id), '{}')
            FROM unnest(new_ids, dedupe_scopes) AS j(id, scope)
            WHERE j.id = ANY (missing)
              AND (j.scope IS DISTINCT FROM 'forever' OR j.id IN (SELECT once.job_id FROM once))
            INTO allowed;
        END IF;
        WITH job AS (
            INSERT INTO :"schema".open_jobs AS o
                (id, kind, payload, priority, tenant, dedupe_key, dedupe_scope, run_after, max_tries, trace, place,
                 execution_id, parent_id, batch_id, created_at)
            SELECT j.id, j.kind, j.payload, coalesce(j.priority, 0), j.tenant, j.key, j.scope,
                   coalesce(j.run_after, clock + make_interval(secs => coalesce(j.delay_s, 0))), j.tries, j.trace,
                   coalesce(j.place, 'worker'), j.execution_id, j.parent_id, j.batch_id, clock
            FROM unnest(new_ids, kinds, payloads, priorities, tenants, dedupe_keys, dedupe_scopes, run_afters,
                        delays_s, enqueue_many.max_tries, traces, places, execution_ids, parent_ids, batch_ids)
                 WITH ORDINALITY AS j(id, kind, payload, priority, tenant, key, scope, run_after, delay_s, tries,
                                      trace, place, execution_id, parent_id, batch_id, n)
            WHERE (allowed IS NULL OR j.id = ANY (allowed))
              AND :"schema".job_ok(j.kind, j.payload, j.key, j.scope, j.run_after, j.delay_s, j.tries, j.place)
            ORDER BY j.scope, j.key, j.n
            ON CONFLICT DO NOTHING
            RETURNING o.id
        )
        SELECT coalesce(array_agg(job.id), '{}') FROM job INTO added;
        EXIT WHEN cardinality(added) = cardinality(missing);

        missing := ARRAY(SELECT unnest(missing) EXCEPT SELECT unnest(added));
        -- Still missing: a job that is refused, or one whose key another job holds.
        PERFORM :"schema".refuse_job(j.n, j.kind, j.payload, j.key, j.scope, j.run_after, j.delay_s, j.tries, j.place)
        FROM unnest(new_ids, kinds, payloads, dedupe_keys, dedupe_scopes, run_afters, delays_s,
                    enqueue_many.max_tries, places)
             WITH ORDINALITY AS j(id, kind, payload, key, scope, run_after, delay_s, tries, place, n)
        WHERE j.id = ANY (missing)
          AND NOT :"schema".job_ok(j.kind, j.payload, j.key, j.scope, j.run_after, j.delay_s, j.tries, j.place)
        ORDER BY j.n LIMIT 1;
        -- A holder that ended since then has left its key free: such a job is tried again.
        SELECT array_agg(coalesce(held.id, j.holder) ORDER BY j.n),
               array_agg(j.id) FILTER (WHERE held.id IS NULL AND j.id = ANY (missing))
        FROM unnest(new_ids, holders, dedupe_keys, dedupe_scopes) WITH ORDINALITY AS j(id, holder, key, scope, n)
        LEFT JOIN LATERAL (
            SELECT o.id FROM :"schema".open_jobs AS o
            WHERE j.scope = 'open' AND o.dedupe_scope = 'open' AND o.dedupe_key = j.key
            UNION ALL
            SELECT o.id FROM :"schema".open_jobs AS o
            WHERE j.scope = 'queued' AND o.dedupe_scope = 'queued' AND o.state = 'queued' AND o.dedupe_key = j.key
            UNION ALL
            SELECT f.job_id FROM :"schema".forever_keys AS f WHERE j.scope = 'forever' AND f.dedupe_key = j.key
        ) AS held ON j.id = ANY (missing)
        INTO holders, missing;
        allowed := missing;
    END LOOP;

    PERFORM :"schema".wake(array_agg(j.kind), clock)
    FROM unnest(kinds, run_afters, delays_s) AS j(kind, run_after, delay_s)
    WHERE (j.run_after IS NULL OR j.run_after <= clock) AND coalesce(j.delay_s, 0) = 0;
    RETURN QUERY
    SELECT j.n::integer, j.holder, j.holder = j.id
    FROM unnest(new_ids, holders) WITH ORDINALITY AS j(id, holder, n);
END
$function$;

-- Adds one job inside the caller's transaction: SELECT rota.enqueue('thumbnail', '{"path": "a.mp4"}').
-- created is false when another job holds the key, and id is then that job's.
CREATE FUNCTION :"schema".enqueue(
    kind text, payload jsonb DEFAULT '{}', priority integer DEFAULT NULL, tenant text DEFAULT NULL,
    dedupe_key text DEFAULT NULL, dedupe_scope text DEFAULT NULL, run_after timestamptz DEFAULT NULL,
    delay_s double precision DEFAULT NULL, max_tries integer DEFAULT NULL, trace text DEFAULT NULL,
    place text DEFAULT NULL, execution_id text DEFAULT NULL, parent_id uuid DEFAULT NULL, batch_id uuid DEFAULT NULL,
    at timestamptz DEFAULT NULL,
    OUT id uuid, OUT created boolean
)
    LANGUAGE plpgsql VOLATILE AS $function$
#variable_conflict use_variable
DECLARE
    clock timestamptz := coalesce(at, now());
    due   timestamptz;
BEGIN
    IF dedupe_key IS NOT NULL OR dedupe_scope IS NOT NULL THEN
        SELECT job.id, job.created
        FROM :"schema".enqueue_many(
            ARRAY[kind], ARRAY[payload], ARRAY[priority], ARRAY[tenant], ARRAY[dedupe_key],
            ARRAY[coalesce(dedupe_scope, 'open')], ARRAY[run_after], ARRAY[delay_s], ARRAY[max_tries], ARRAY[trace],
            ARRAY[place], ARRAY[execution_id], ARRAY[parent_id], ARRAY[batch_id], at) AS job
        INTO id, created;
        RETURN;
    END IF;
    IF NOT :"schema".job_ok(kind, payload, dedupe_key, dedupe_scope, run_after, delay_s, max_tries, place) THEN
        PERFORM :"schema".refuse_job(1, kind, payload, dedupe_key, dedupe_scope, run_after, delay_s, max_tries, place);
    END IF;
    due := coalesce(run_after, clock + make_interval(secs => coalesce(delay_s, 0)));
    id := :"schema".uuid_v7_head(coalesce(at, clock_timestamp()), 0) || :"schema".uuid_v7_tail();
    created := true;
    INSERT INTO :"schema".open_jobs
        (id, kind, payload, priority, tenant, run_after, max_tries, trace, place, execution_id, parent_id, batch_id,
         created_at)
    VALUES (id, kind, payload, coalesce(priority, 0), tenant, due, max_tries, trace, coalesce(place, 'worker'),
            execution_id, parent_id, batch_id, clock);
    IF due <= clock THEN
        PERFORM :"schema".wake(ARRAY[kind], clock);
    END IF;
END
$function$;
