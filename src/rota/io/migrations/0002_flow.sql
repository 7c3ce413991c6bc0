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

-- Jobs that were added together, with one follow-up when all have ended. No job's end touches this table: whoever ends
-- a job of a batch looks afterwards whether it was the last (close_batches.sql), so there is no row to wait for.
CREATE TABLE :"schema".batches (
    id                  uuid        NOT NULL,
    created_at          timestamptz NOT NULL DEFAULT now(),
    ended_at            timestamptz,
    jobs                integer     NOT NULL,
    done                integer,
    failed              integer,
    cancelled           integer,
    expired             integer,
    then_kind           text,
    then_payload        jsonb,
    then_priority       integer,
    then_tenant         text,
    then_max_tries      integer,
    then_trace          text,
    then_id             uuid,
    CONSTRAINT batches_pkey PRIMARY KEY (id)
);
-- Those that may be over; few, however many there have been.
CREATE INDEX batches_open ON :"schema".batches (id) WHERE ended_at IS NULL;
CREATE INDEX batches_ended ON :"schema".batches (ended_at) WHERE ended_at IS NOT NULL;

-- A throttle-scope key creates at most one job in each window; the row says until when.
CREATE TABLE :"schema".throttle_keys (
    dedupe_key          text        NOT NULL,
    job_id              uuid        NOT NULL,
    until               timestamptz NOT NULL,
    CONSTRAINT throttle_keys_pkey PRIMARY KEY (dedupe_key)
);
CREATE INDEX throttle_keys_until ON :"schema".throttle_keys (until);

-- A job that was cancelled before its holder answered may still run until its lease would have ended (I2): until then
-- nobody may start it again.
ALTER TABLE :"schema".ended_jobs ADD COLUMN runs_until timestamptz;

-- The functions that add jobs take more than before, so they have other parameters.
DROP FUNCTION :"schema".enqueue(
    text, jsonb, integer, text, text, text, timestamptz, double precision, integer, text, text, text, timestamptz);
DROP FUNCTION :"schema".enqueue_many(
    text[], jsonb[], integer[], text[], text[], text[], timestamptz[], double precision[], integer[], text[], text[],
    text[], timestamptz);
DROP FUNCTION :"schema".job_ok(
    text, jsonb, text, text, timestamptz, double precision, integer, text);
DROP FUNCTION :"schema".refuse_job(
    bigint, text, jsonb, text, text, timestamptz, double precision, integer, text);

-- Whether a job may be stored. Every way of adding jobs asks here, and refuse_job says what is wrong.
CREATE FUNCTION :"schema".job_ok(
    kind text, payload jsonb, dedupe_key text, dedupe_scope text, run_after timestamptz, delay_s double precision,
    max_tries integer, place text, dedupe_window_s double precision
) RETURNS boolean
    LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $function$
    SELECT kind IS NOT NULL AND length(kind) BETWEEN 1 AND 200
       AND payload IS NOT NULL AND pg_column_size(payload) <= 33554432
       AND (dedupe_key IS NULL) = (dedupe_scope IS NULL)
       AND (dedupe_key IS NULL
            OR length(dedupe_key) BETWEEN 1 AND 500
               AND dedupe_scope IN ('open', 'queued', 'forever', 'throttle', 'replace', 'merge', 'debounce'))
       -- Python knows no times beyond: a job with one could be claimed, but not read.
       AND (run_after IS NULL OR run_after >= '0001-01-01 00:00+00' AND run_after < '10000-01-01 00:00+00')
       AND (delay_s IS NULL OR delay_s BETWEEN 0 AND 3155760000)
       AND (max_tries IS NULL OR max_tries BETWEEN 1 AND 1000)
       AND (place IS NULL OR place IN ('worker', 'CloudPool', 'OrgRunner'))
       AND CASE WHEN dedupe_window_s IS NULL THEN dedupe_scope IS DISTINCT FROM 'throttle'
                ELSE coalesce(dedupe_scope IN ('throttle', 'debounce'), false)
                     AND dedupe_window_s > 0 AND dedupe_window_s <= 3155760000 END
$function$;

-- Says what is wrong with job `number` of an enqueue.
CREATE FUNCTION :"schema".refuse_job(
    number bigint, kind text, payload jsonb, dedupe_key text, dedupe_scope text, run_after timestamptz,
    delay_s double precision, max_tries integer, place text, dedupe_window_s double precision
) RETURNS void
    LANGUAGE plpgsql AS $function$
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value', MESSAGE = format('rota: job %s of this enqueue %s',
        number, CASE
            WHEN kind IS NULL OR length(kind) NOT BETWEEN 1 AND 200
                THEN 'has no usable kind: give a name of 1 to 200 characters'
            WHEN payload IS NULL
                THEN 'has no payload: give JSON, such as ''{}'''
            WHEN pg_column_size(payload) > 33554432
                THEN 'has a payload over 32 MiB: store the bytes elsewhere and enqueue their address'
            WHEN max_tries NOT BETWEEN 1 AND 1000
                THEN 'has a max_tries outside 1 to 1000'
            WHEN place NOT IN ('worker', 'CloudPool', 'OrgRunner')
                THEN 'has an unknown place: give worker, CloudPool or OrgRunner'
            WHEN run_after < '0001-01-01 00:00+00' OR run_after >= '10000-01-01 00:00+00'
                THEN 'has a run_after outside the years 1 to 9999'
            WHEN delay_s NOT BETWEEN 0 AND 3155760000
                THEN 'has a delay_s outside 0 to 3155760000 (a hundred years)'
            WHEN dedupe_scope NOT IN ('open', 'queued', 'forever', 'throttle', 'replace', 'merge', 'debounce')
                THEN 'has an unknown dedupe_scope: give open, queued, forever, throttle, replace, merge or debounce'
            WHEN dedupe_key IS NULL OR dedupe_scope IS NULL OR length(dedupe_key) NOT BETWEEN 1 AND 500
                THEN 'needs a dedupe_key of 1 to 500 characters together with a dedupe_scope'
            WHEN dedupe_window_s IS NULL
                THEN 'needs a dedupe_window_s: throttle adds at most one job in so many seconds'
            WHEN dedupe_scope NOT IN ('throttle', 'debounce')
                THEN 'has a dedupe_window_s, which only throttle and debounce know'
            ELSE 'has a dedupe_window_s outside 0 to 3155760000 (a hundred years)'
        END);
END
$function$;

-- What the payload of a queued job becomes when another with its key is merged into it: arrays are joined, also those
-- that stand under the same name in two objects; of anything else the later one stays.
CREATE FUNCTION :"schema".merged(old jsonb, new jsonb) RETURNS jsonb
    LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $function$
    SELECT CASE
        WHEN jsonb_typeof(old) = 'array' AND jsonb_typeof(new) = 'array' THEN old || new
        WHEN jsonb_typeof(old) = 'object' AND jsonb_typeof(new) = 'object' THEN old || new || coalesce((
            SELECT jsonb_object_agg(later.key, sooner.value || later.value)
            FROM jsonb_each(old) AS sooner JOIN jsonb_each(new) AS later ON later.key = sooner.key
            WHERE jsonb_typeof(sooner.value) = 'array' AND jsonb_typeof(later.value) = 'array'), '{}')
        ELSE new END
$function$;

-- Adds jobs inside the caller's transaction: element n of each array is job n. A null array means the default for
-- all of its jobs. Rows in the same order: number (from 1), id, created; created is false when another job holds
-- the key, and id is then that job's. An insert that meets an uncommitted twin waits for its fate.
-- The scopes replace, merge and debounce are stored as queued: they say what becomes of the job that holds the key.
CREATE FUNCTION :"schema".enqueue_many(
    kinds text[], payloads jsonb[], priorities integer[] DEFAULT NULL, tenants text[] DEFAULT NULL,
    dedupe_keys text[] DEFAULT NULL, dedupe_scopes text[] DEFAULT NULL, run_afters timestamptz[] DEFAULT NULL,
    delays_s double precision[] DEFAULT NULL, max_tries integer[] DEFAULT NULL, traces text[] DEFAULT NULL,
    places text[] DEFAULT NULL, execution_ids text[] DEFAULT NULL, parent_ids uuid[] DEFAULT NULL,
    batch_ids uuid[] DEFAULT NULL, dedupe_windows_s double precision[] DEFAULT NULL, at timestamptz DEFAULT NULL
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
    allowed uuid[];  -- null: all of them, as in the first round without keys that outlive their job
    added   uuid[];
    changes boolean := dedupe_scopes && ARRAY['replace', 'merge', 'debounce'];
    job     record;
    holder  uuid;
    stored  jsonb;
BEGIN
    IF changes THEN
        missing := ARRAY(SELECT j.id FROM unnest(new_ids, dedupe_scopes) AS j(id, scope)
                         WHERE j.scope IS NULL OR j.scope NOT IN ('replace', 'merge', 'debounce'));
        allowed := missing;
    END IF;
    WHILE cardinality(missing) > 0 LOOP
        IF dedupe_scopes && ARRAY['forever', 'throttle'] THEN
            -- In the order of the keys, here and below, so that two callers with the same keys cannot deadlock.
            WITH once AS (
                INSERT INTO :"schema".forever_keys AS f (dedupe_key, job_id, created_at)
                SELECT j.key, j.id, clock
                FROM unnest(new_ids, dedupe_keys, dedupe_scopes) WITH ORDINALITY AS j(id, key, scope, n)
                WHERE j.scope = 'forever' AND length(j.key) BETWEEN 1 AND 500 AND j.id = ANY (missing)
                ORDER BY j.key, j.n
                ON CONFLICT DO NOTHING
                RETURNING f.job_id
            ), window_begins AS (
                INSERT INTO :"schema".throttle_keys AS t (dedupe_key, job_id, until)
                SELECT DISTINCT ON (j.key) j.key, j.id, clock + make_interval(secs => j.window_s)
                FROM unnest(new_ids, dedupe_keys, dedupe_scopes, dedupe_windows_s)
                     WITH ORDINALITY AS j(id, key, scope, window_s, n)
                WHERE j.scope = 'throttle' AND length(j.key) BETWEEN 1 AND 500 AND j.id = ANY (missing)
                  AND j.window_s > 0 AND j.window_s <= 3155760000
                  -- Behind all forever keys: else the first row read would say which sort is taken first.
                  AND (SELECT count(*) FROM once) >= 0
                ORDER BY j.key, j.n
                ON CONFLICT (dedupe_key) DO UPDATE SET job_id = EXCLUDED.job_id, until = EXCLUDED.until
                WHERE t.until <= clock
                RETURNING t.job_id
            )
            SELECT coalesce(array_agg(j.id), '{}')
            FROM unnest(new_ids, dedupe_scopes) AS j(id, scope)
            WHERE j.id = ANY (missing)
              AND CASE j.scope WHEN 'forever' THEN j.id IN (SELECT once.job_id FROM once)
                               WHEN 'throttle' THEN j.id IN (SELECT window_begins.job_id FROM window_begins)
                               ELSE true END
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
                        delays_s, enqueue_many.max_tries, traces, places, execution_ids, parent_ids, batch_ids,
                        dedupe_windows_s)
                 WITH ORDINALITY AS j(id, kind, payload, priority, tenant, key, scope, run_after, delay_s, tries,
                                      trace, place, execution_id, parent_id, batch_id, window_s, n)
            WHERE (allowed IS NULL OR j.id = ANY (allowed))
              AND :"schema".job_ok(j.kind, j.payload, j.key, j.scope, j.run_after, j.delay_s, j.tries, j.place,
                                     j.window_s)
            ORDER BY j.scope, j.key, j.n
            ON CONFLICT DO NOTHING
            RETURNING o.id
        )
        SELECT coalesce(array_agg(job.id), '{}') FROM job INTO added;
        EXIT WHEN cardinality(added) = cardinality(missing);

        missing := ARRAY(SELECT unnest(missing) EXCEPT SELECT unnest(added));
        -- Still missing: a job that is refused, or one whose key another job holds.
        PERFORM :"schema".refuse_job(j.n, j.kind, j.payload, j.key, j.scope, j.run_after, j.delay_s, j.tries, j.place,
                                     j.window_s)
        FROM unnest(new_ids, kinds, payloads, dedupe_keys, dedupe_scopes, run_afters, delays_s,
                    enqueue_many.max_tries, places, dedupe_windows_s)
             WITH ORDINALITY AS j(id, kind, payload, key, scope, run_after, delay_s, tries, place, window_s, n)
        WHERE j.id = ANY (missing)
          AND NOT :"schema".job_ok(j.kind, j.payload, j.key, j.scope, j.run_after, j.delay_s, j.tries, j.place,
                                     j.window_s)
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
            UNION ALL
            SELECT t.job_id FROM :"schema".throttle_keys AS t WHERE j.scope = 'throttle' AND t.dedupe_key = j.key
        ) AS held ON j.id = ANY (missing)
        INTO holders, missing;
        allowed := missing;
    END LOOP;

    IF changes THEN
        -- One by one, because several of them may go into the same job; in the order of their keys.
        FOR job IN
            SELECT j.* FROM unnest(new_ids, kinds, payloads, priorities, tenants, dedupe_keys, dedupe_scopes,
                                   run_afters, delays_s, enqueue_many.max_tries, traces, places, execution_ids,
                                   parent_ids, batch_ids, dedupe_windows_s)
                 WITH ORDINALITY AS j(id, kind, payload, priority, tenant, key, scope, run_after, delay_s, tries,
                                      trace, place, execution_id, parent_id, batch_id, window_s, n)
            WHERE j.scope IN ('replace', 'merge', 'debounce')
            ORDER BY j.key, j.n
        LOOP
            IF NOT :"schema".job_ok(job.kind, job.payload, job.key, job.scope, job.run_after, job.delay_s, job.tries,
                                    job.place, job.window_s) THEN
                PERFORM :"schema".refuse_job(job.n, job.kind, job.payload, job.key, job.scope, job.run_after,
                                             job.delay_s, job.tries, job.place, job.window_s);
            END IF;
            INSERT INTO :"schema".open_jobs AS o
                (id, kind, payload, priority, tenant, dedupe_key, dedupe_scope, run_after, max_tries, trace, place,
                 execution_id, parent_id, batch_id, created_at)
            VALUES (job.id, job.kind, job.payload, coalesce(job.priority, 0), job.tenant, job.key, 'queued',
                    coalesce(job.run_after, clock + make_interval(secs => coalesce(job.delay_s, 0))), job.tries,
                    job.trace, coalesce(job.place, 'worker'), job.execution_id, job.parent_id, job.batch_id, clock)
            ON CONFLICT (dedupe_key) WHERE dedupe_scope = 'queued' AND state = 'queued' DO UPDATE
            SET payload = CASE job.scope WHEN 'merge' THEN :"schema".merged(o.payload, EXCLUDED.payload)
                                         ELSE EXCLUDED.payload END,
                priority = greatest(o.priority, EXCLUDED.priority),
                -- least() passes over a null: a debounce without an end.
                run_after = CASE job.scope
                    WHEN 'debounce'
                        THEN least(EXCLUDED.run_after, o.created_at + make_interval(secs => job.window_s))
                    ELSE least(o.run_after, EXCLUDED.run_after) END,
                tries = 0,
                last_error = NULL
            RETURNING o.id, o.payload INTO holder, stored;
            IF pg_column_size(stored) > 33554432 THEN
                PERFORM :"schema".refuse_job(job.n, job.kind, stored, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
            END IF;
            holders[job.n] := holder;
        END LOOP;
    END IF;

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
    dedupe_window_s double precision DEFAULT NULL, at timestamptz DEFAULT NULL,
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
            ARRAY[place], ARRAY[execution_id], ARRAY[parent_id], ARRAY[batch_id],
            ARRAY[dedupe_window_s], at) AS job
        INTO id, created;
        RETURN;
    END IF;
    IF NOT :"schema".job_ok(kind, payload, dedupe_key, dedupe_scope, run_after, delay_s, max_tries, place,
                            dedupe_window_s) THEN
        PERFORM :"schema".refuse_job(1, kind, payload, dedupe_key, dedupe_scope, run_after, delay_s, max_tries, place,
                                     dedupe_window_s);
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
