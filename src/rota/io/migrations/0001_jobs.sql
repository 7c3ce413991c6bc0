-- Open and ended jobs, the keys that are used once, who waits for work, and the functions that add jobs.
--
-- Open jobs (queued, leased) stand in a table of their own: it stays small however long the history is, so vacuum
-- of what every job leaves behind costs the same on the first day and after a year. Ended jobs are only ever added
-- and, after their retention, removed. The view `jobs` is the one table that people and their queries see.

CREATE TABLE :"schema".open_jobs (
    id                  uuid        NOT NULL,
    run_after           timestamptz NOT NULL DEFAULT now(),
    created_at          timestamptz NOT NULL DEFAULT now(),
    started_at          timestamptz,
    heartbeat_at        timestamptz,
    lease_until         timestamptz,
    cancel_asked_at     timestamptz,
    lease_epoch         bigint      NOT NULL DEFAULT 0,
    priority            integer     NOT NULL DEFAULT 0,
    tries               integer     NOT NULL DEFAULT 0,
    max_tries           integer,
    kind                text        NOT NULL,
    state               text        NOT NULL DEFAULT 'queued',
    place               text        NOT NULL DEFAULT 'worker',
    tenant              text,
    dedupe_key          text,
    dedupe_scope        text,
    leased_by           text,
    last_error          text,
    execution_id        text,
    trace               text,
    payload             jsonb       NOT NULL,
    progress            jsonb,
    CONSTRAINT open_jobs_pkey PRIMARY KEY (id),
    CONSTRAINT open_jobs_state CHECK (state IN ('queued', 'leased'))
) WITH (
    -- Each job is updated once and deleted once: room on the page for the update, and vacuum after a few thousand
    -- dead rows whatever the table's size, without the pauses that suit big tables.
    fillfactor = 80,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 2000,
    autovacuum_analyze_scale_factor = 0.05,
    autovacuum_analyze_threshold = 2000,
    autovacuum_vacuum_cost_delay = 0
);

-- What a claim walks: one kind, highest priority first, oldest first. Literal states, so that a plan can use it.
CREATE INDEX open_jobs_next ON :"schema".open_jobs (kind, priority DESC, run_after, id)
    WHERE state = 'queued' AND place = 'worker';
-- What the sweep walks.
CREATE INDEX open_jobs_lease ON :"schema".open_jobs (lease_until) WHERE state = 'leased';
-- The few jobs that somebody asked to cancel while they run.
CREATE INDEX open_jobs_cancel ON :"schema".open_jobs (leased_by) WHERE cancel_asked_at IS NOT NULL;
-- I6: two open jobs never share an open-scope key; one queued job for each queued-scope key.
CREATE UNIQUE INDEX open_jobs_open_key ON :"schema".open_jobs (dedupe_key) WHERE dedupe_scope = 'open';
CREATE UNIQUE INDEX open_jobs_queued_key ON :"schema".open_jobs (dedupe_key)
    WHERE dedupe_scope = 'queued' AND state = 'queued';

CREATE TABLE :"schema".ended_jobs (
    id                  uuid        NOT NULL,
    run_after           timestamptz NOT NULL,
    created_at          timestamptz NOT NULL,
    started_at          timestamptz,
    heartbeat_at        timestamptz,
    finished_at         timestamptz NOT NULL,
    lease_epoch         bigint      NOT NULL,
    priority            integer     NOT NULL,
    tries               integer     NOT NULL,
    max_tries           integer,
    kind                text        NOT NULL,
    state               text        NOT NULL,
    place               text        NOT NULL,
    tenant              text,
    dedupe_key          text,
    dedupe_scope        text,
    leased_by           text,
    last_error          text,
    execution_id        text,
    trace               text,
    payload             jsonb       NOT NULL,
    progress            jsonb,
    result              jsonb,
    CONSTRAINT ended_jobs_pkey PRIMARY KEY (id),
    CONSTRAINT ended_jobs_state CHECK (state IN ('done', 'failed', 'cancelled', 'expired'))
) WITH (
    -- Rows are never updated; what retention removes is vacuumed by volume, not by a share of a long history.
    fillfactor = 100,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 50000,
    autovacuum_vacuum_insert_scale_factor = 0,
    autovacuum_vacuum_insert_threshold = 500000
);

-- Rows come in the order in which jobs end, so a few pages describe the whole table: retention for almost nothing.
CREATE INDEX ended_jobs_finished ON :"schema".ended_jobs USING brin (finished_at) WITH (pages_per_range = 32);
-- What people look for is seldom a job that went well, and the jobs that did pay nothing here.
CREATE INDEX ended_jobs_not_done ON :"schema".ended_jobs (state, id) WHERE state <> 'done';

CREATE VIEW :"schema".jobs AS
    SELECT id, kind, tenant, payload, priority, dedupe_key, dedupe_scope, run_after, state, leased_by, lease_epoch,
           lease_until, heartbeat_at, tries, max_tries, last_error, created_at, started_at,
           NULL::timestamptz AS finished_at, NULL::jsonb AS result, progress, trace, place, execution_id,
           cancel_asked_at
    FROM :"schema".open_jobs
    UNION ALL
    SELECT id, kind, tenant, payload, priority, dedupe_key, dedupe_scope, run_after, state, leased_by, lease_epoch,
           NULL, heartbeat_at, tries, max_tries, last_error, created_at, started_at,
           finished_at, result, progress, trace, place, execution_id,
           NULL
    FROM :"schema".ended_jobs;

-- A forever-scope key creates once, ever: it outlives its job and the job's retention.
CREATE TABLE :"schema".forever_keys (
    dedupe_key          text        NOT NULL,
    job_id              uuid        NOT NULL,
    created_at          timestamptz NOT NULL,
    CONSTRAINT forever_keys_pkey PRIMARY KEY (dedupe_key)
);

-- Worker processes that sleep and want to be woken. Enqueueing notifies only while somebody stands here, because a
-- NOTIFY takes a lock that all notifying commits share. Unlogged: after a crash of the server every worker
-- connects anew and stands here again.
CREATE UNLOGGED TABLE :"schema".waiting (
    holder              text        NOT NULL,
    kinds               text[]      NOT NULL,
    until               timestamptz NOT NULL,
    CONSTRAINT waiting_pkey PRIMARY KEY (holder)
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0);

-- The first half of a uuid v7 (RFC 9562) as hex: milliseconds, then the microseconds in the 12 bits that follow (its
-- method 3). `step` moves the time on by so many microseconds, so that the ids of one batch keep the batch's order.
CREATE FUNCTION :"schema".uuid_v7_head(at timestamptz, step integer) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $function$
    SELECT lpad(to_hex((us / 1000) << 16 | 28672 | (us % 1000) * 4096 / 1000), 16, '0')
    FROM (SELECT (extract(epoch FROM at) * 1000000)::bigint + step AS us) AS clock
$function$;

-- The other half: variant and random bits. A batch may share it, because its heads differ.
CREATE FUNCTION :"schema".uuid_v7_tail() RETURNS text
    LANGUAGE sql VOLATILE PARALLEL SAFE AS $function$
    SELECT right(replace(gen_random_uuid()::text, '-', ''), 16)
$function$;

-- Whether a job may be stored. Every way of adding jobs asks here, and refuse_job says what is wrong.
CREATE FUNCTION :"schema".job_ok(
    kind text, payload jsonb, dedupe_key text, dedupe_scope text, run_after timestamptz, delay_s double precision,
    max_tries integer, place text
) RETURNS boolean
    LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $function$
    SELECT kind IS NOT NULL AND length(kind) BETWEEN 1 AND 200
       AND payload IS NOT NULL AND pg_column_size(payload) <= 33554432
       AND (dedupe_key IS NULL) = (dedupe_scope IS NULL)
       AND (dedupe_key IS NULL
            OR length(dedupe_key) BETWEEN 1 AND 500 AND dedupe_scope IN ('open', 'queued', 'forever'))
       -- Python knows no times beyond: a job with one could be claimed, but not read.
       AND (run_after IS NULL OR run_after >= '0001-01-01 00:00+00' AND run_after < '10000-01-01 00:00+00')
       AND (delay_s IS NULL OR delay_s BETWEEN 0 AND 3155760000)
       AND (max_tries IS NULL OR max_tries BETWEEN 1 AND 1000)
       AND (place IS NULL OR place IN ('worker', 'CloudPool', 'OrgRunner'))
$function$;

-- Says what is wrong with job `number` of an enqueue.
CREATE FUNCTION :"schema".refuse_job(
    number bigint, kind text, payload jsonb, dedupe_key text, dedupe_scope text, run_after timestamptz,
    delay_s double precision, max_tries integer, place text
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
            WHEN dedupe_scope NOT IN ('open', 'queued', 'forever')
                THEN 'has an unknown dedupe_scope: give open, queued or forever'
            ELSE 'needs a dedupe_key of 1 to 500 characters together with a dedupe_scope'
        END);
END
$function$;

-- Wakes the workers that wait for one of these kinds; costs one look at a tiny table while none does.
CREATE FUNCTION :"schema".wake(kinds text[], at timestamptz DEFAULT NULL) RETURNS void
    LANGUAGE plpgsql VOLATILE AS $function$
BEGIN
    IF EXISTS (SELECT FROM :"schema".waiting AS w WHERE w.until > coalesce(at, now()) AND w.kinds && wake.kinds) THEN
        PERFORM pg_notify(:'channel', kind) FROM (SELECT DISTINCT unnest(wake.kinds) AS kind) AS woken;
    END IF;
END
$function$;

-- Adds jobs inside the caller's transaction: element n of each array is job n. A null array means the default for
-- all of its jobs. Rows in the same order: number (from 1), id, created; created is false when another job holds
-- the key, and id is then that job's. An insert that meets an uncommitted twin waits for its fate.
CREATE FUNCTION :"schema".enqueue_many(
    kinds text[], payloads jsonb[], priorities integer[] DEFAULT NULL, tenants text[] DEFAULT NULL,
    dedupe_keys text[] DEFAULT NULL, dedupe_scopes text[] DEFAULT NULL, run_afters timestamptz[] DEFAULT NULL,
    delays_s double precision[] DEFAULT NULL, max_tries integer[] DEFAULT NULL, traces text[] DEFAULT NULL,
    places text[] DEFAULT NULL, execution_ids text[] DEFAULT NULL, at timestamptz DEFAULT NULL
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
                 execution_id, created_at)
            SELECT j.id, j.kind, j.payload, coalesce(j.priority, 0), j.tenant, j.key, j.scope,
                   coalesce(j.run_after, clock + make_interval(secs => coalesce(j.delay_s, 0))), j.tries, j.trace,
                   coalesce(j.place, 'worker'), j.execution_id, clock
            FROM unnest(new_ids, kinds, payloads, priorities, tenants, dedupe_keys, dedupe_scopes, run_afters,
                        delays_s, enqueue_many.max_tries, traces, places, execution_ids)
                 WITH ORDINALITY AS j(id, kind, payload, priority, tenant, key, scope, run_after, delay_s, tries,
                                      trace, place, execution_id, n)
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
    place text DEFAULT NULL, execution_id text DEFAULT NULL, at timestamptz DEFAULT NULL,
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
            ARRAY[place], ARRAY[execution_id], at) AS job
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
        (id, kind, payload, priority, tenant, run_after, max_tries, trace, place, execution_id, created_at)
    VALUES (id, kind, payload, coalesce(priority, 0), tenant, due, max_tries, trace, coalesce(place, 'worker'),
            execution_id, clock);
    IF due <= clock THEN
        PERFORM :"schema".wake(ARRAY[kind], clock);
    END IF;
END
$function$;
