-- Limits beyond one server: how many jobs of a kind, and of a tenant in it, run at once in all, how many start in a
-- window of time, and whose turn it is. What is here costs kinds without such limits one entry in one index.

-- Set by a claim that counts leases, so that counting reads the leases of limited kinds and no others.
ALTER TABLE :"schema".open_jobs ADD COLUMN counted boolean NOT NULL DEFAULT false;
CREATE INDEX open_jobs_counted ON :"schema".open_jobs (kind, tenant) WHERE state = 'leased' AND counted;

-- What a claim by turns walks: from tenant to tenant, and within each as open_jobs_next. Jobs without a tenant pay
-- nothing for it. In the order of bytes, which is also Python's, so that a worker knows whose turn was the last.
CREATE INDEX open_jobs_turn ON :"schema".open_jobs (kind, tenant COLLATE "C", priority DESC, run_after, id)
    WHERE state = 'queued' AND place = 'worker' AND tenant IS NOT NULL;

-- Jobs of rate-limited kinds that started, by slices of the window: no row is written twice for one claim, and only
-- claims of such kinds write here.
CREATE TABLE :"schema".starts (
    kind                text        NOT NULL,
    slice_at            timestamptz NOT NULL,
    jobs                integer     NOT NULL,
    CONSTRAINT starts_pkey PRIMARY KEY (kind, slice_at)
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);

-- The begin of the slice that holds this time; a window has 60 of them.
CREATE FUNCTION :"schema".slice_at(at timestamptz, window_s double precision) RETURNS timestamptz
    LANGUAGE sql STABLE PARALLEL SAFE AS $function$
    SELECT to_timestamp(floor(extract(epoch FROM at)::double precision * 60 / window_s) * window_s / 60)
$function$;

-- Takes the next due jobs of one kind that has limits; claim_turns.sql calls it and describes the parameters.
-- plpgsql, because each statement of such a function sees what was committed before it began: the claims of a kind with
-- limits come one after the other by an advisory lock of the transaction, and the second counts what the first took.
CREATE FUNCTION :"schema".claim_turns(
    kind text, free integer, lease_s double precision, kind_tries integer, lowest integer, fleet_limit integer,
    tenant_limit integer, by_turns boolean, turn_after text, rate_jobs integer, rate_s double precision,
    holder text, at timestamptz
) RETURNS SETOF :"schema".open_jobs
    LANGUAGE plpgsql VOLATILE AS $function$
#variable_conflict use_variable
DECLARE
    counts  boolean := fleet_limit IS NOT NULL OR tenant_limit IS NOT NULL;
    floor   bigint := coalesce(lowest, -2147483648);
    room    bigint := free;
    freed   uuid[];        -- leases that ran out and cannot be renewed any more
    running jsonb;         -- live leases by tenant
    tour    integer := 1;    -- 1: tenants behind the last turn, 2: none, 3: tenants before it, 4: equal shares
    last    text := coalesce(turn_after, '');
    whose   text := last;
    tenants text[] := '{}';
    more    text[] := '{}';  -- tenants that gave all they were asked for
    number  integer := 0;
    share   bigint := 1;
    each    bigint := 0;     -- jobs taken of each of `tenants` so far
    quota   bigint;
    clock   timestamptz;
    slice   timestamptz;
    ids     uuid[];
    taken   bigint := 0;
    paused  text[];          -- tenants whose jobs are passed over
BEGIN
    IF counts OR rate_jobs IS NOT NULL THEN
        PERFORM pg_advisory_xact_lock(hashtextextended(:'schema' || ' claims ' || kind, 0));
    END IF;
    clock := coalesce(at, clock_timestamp());
    paused := ARRAY(SELECT p.name FROM :"schema".pauses AS p
                    WHERE p.scope = 'tenant' AND (p.until IS NULL OR p.until > clock));

    IF counts THEN
        -- A lease that ran out does not count. It is written, as it is, so that a renewal that is under way looks at
        -- the clock again and is refused. Where the row is locked, that may be such a renewal: it counts.
        WITH over AS MATERIALIZED (
            SELECT o.id FROM :"schema".open_jobs AS o
            WHERE o.state = 'leased' AND o.counted AND o.kind = claim_turns.kind AND o.lease_until <= clock
            FOR UPDATE SKIP LOCKED
        ), written AS (
            UPDATE :"schema".open_jobs AS j SET lease_until = j.lease_until
            FROM over WHERE j.id BETWEEN over.id AND over.id
            RETURNING j.id
        )
        SELECT coalesce(array_agg(written.id), '{}') INTO freed FROM written;
    END IF;
    IF fleet_limit IS NOT NULL THEN
        SELECT least(room, fleet_limit - count(*)) INTO room FROM :"schema".open_jobs AS o
        WHERE o.state = 'leased' AND o.counted AND o.kind = claim_turns.kind AND o.id <> ALL (freed);
    END IF;
    IF rate_jobs IS NOT NULL THEN
        -- No window touches more than 61 slices, so none ever holds more than these may.
        slice := :"schema".slice_at(clock, rate_s);
        SELECT least(room, rate_jobs - coalesce(sum(s.jobs), 0)) INTO room FROM :"schema".starts AS s
        WHERE s.kind = claim_turns.kind AND s.slice_at > slice - make_interval(secs => rate_s * 60.5 / 60);
    END IF;
    IF tenant_limit IS NOT NULL THEN
        SELECT coalesce(jsonb_object_agg(live.tenant, live.jobs), '{}') INTO running
        FROM (SELECT o.tenant, count(*) AS jobs FROM :"schema".open_jobs AS o
              WHERE o.state = 'leased' AND o.counted AND o.kind = claim_turns.kind AND o.tenant <> ''
                AND o.id <> ALL (freed)
              GROUP BY o.tenant) AS live;
    END IF;

    -- By turns: one job of each tenant from the one behind the last turn on, once around; then equal shares of what is
    -- left, of those that gave all they were asked for.
    WHILE taken < room LOOP
        IF NOT by_turns THEN
            quota := room;
        ELSIF tour < 4 THEN
            IF tour <> 2 THEN
                SELECT o.tenant INTO whose FROM :"schema".open_jobs AS o
                WHERE o.state = 'queued' AND o.place = 'worker' AND o.kind = claim_turns.kind
                  AND o.tenant COLLATE "C" > whose
                ORDER BY o.tenant COLLATE "C" LIMIT 1;
                IF whose IS NULL OR (tour = 3 AND whose COLLATE "C" > last) THEN
                    tour := tour + 1;
                    CONTINUE;
                END IF;
            END IF;
            quota := 1;
        ELSE
            number := number + 1;
            IF number > cardinality(tenants) THEN
                EXIT WHEN more = '{}';
                each := each + share;
                tenants := more;
                more := '{}';
                number := 1;
                share := greatest(1, (room - taken) / cardinality(tenants));
            END IF;
            whose := tenants[number];
            quota := least(share, room - taken);
        END IF;
        IF by_turns AND whose = ANY (paused) THEN
            quota := 0;
        END IF;
        IF tenant_limit IS NOT NULL AND whose IS NOT NULL THEN
            quota := least(quota, tenant_limit - each - coalesce((running ->> whose)::bigint, 0));
        END IF;

        IF quota <= 0 THEN
            CONTINUE;
        ELSIF NOT by_turns THEN
            WITH RECURSIVE level(priority) AS (
                (SELECT o.priority FROM :"schema".open_jobs AS o
                 WHERE o.state = 'queued' AND o.place = 'worker' AND o.kind = claim_turns.kind
                 ORDER BY o.priority DESC LIMIT 1)
                UNION ALL
                SELECT (SELECT o.priority FROM :"schema".open_jobs AS o
                        WHERE o.state = 'queued' AND o.place = 'worker' AND o.kind = claim_turns.kind
                          AND o.priority < level.priority
                        ORDER BY o.priority DESC LIMIT 1)
                FROM level WHERE level.priority > floor
            )
            SELECT array_agg(next.id) INTO ids
            FROM (SELECT due.id
                  FROM level CROSS JOIN LATERAL (
                      SELECT o.id FROM :"schema".open_jobs AS o
                      WHERE o.state = 'queued' AND o.place = 'worker' AND o.kind = claim_turns.kind
                        AND o.priority = level.priority AND o.run_after <= clock
                        AND (o.tenant IS NULL OR o.tenant <> ALL (paused))
                      ORDER BY o.run_after, o.id
                      LIMIT quota
                      FOR UPDATE SKIP LOCKED
                  ) AS due
                  WHERE level.priority >= floor
                  LIMIT quota) AS next;
        ELSIF whose IS NULL THEN
            -- Jobs without a tenant (or with an empty one) have no index of their own: those among the first in line.
            WITH RECURSIVE level(priority) AS (
                (SELECT o.priority FROM :"schema".open_jobs AS o
                 WHERE o.state = 'queued' AND o.place = 'worker' AND o.kind = claim_turns.kind
                 ORDER BY o.priority DESC LIMIT 1)
                UNION ALL
                SELECT (SELECT o.priority FROM :"schema".open_jobs AS o
                        WHERE o.state = 'queued' AND o.place = 'worker' AND o.kind = claim_turns.kind
                          AND o.priority < level.priority
                        ORDER BY o.priority DESC LIMIT 1)
                FROM level WHERE level.priority > floor
            ), first AS (
                SELECT due.id, due.tenant
                FROM level CROSS JOIN LATERAL (
                    SELECT o.id, o.tenant FROM :"schema".open_jobs AS o
                    WHERE o.state = 'queued' AND o.place = 'worker' AND o.kind = claim_turns.kind
                      AND o.priority = level.priority AND o.run_after <= clock
                    ORDER BY o.run_after, o.id
                    LIMIT 1000
                ) AS due
                WHERE level.priority >= floor
                LIMIT 1000
            )
            SELECT array_agg(next.id) INTO ids
            FROM (SELECT o.id FROM :"schema".open_jobs AS o
                  WHERE o.id = ANY (ARRAY(SELECT first.id FROM first WHERE coalesce(first.tenant, '') = ''))
                    AND o.state || '' = 'queued'
                  ORDER BY o.priority DESC, o.run_after, o.id
                  LIMIT quota
                  FOR UPDATE SKIP LOCKED) AS next;
        ELSE
            WITH RECURSIVE level(priority) AS (
                (SELECT o.priority FROM :"schema".open_jobs AS o
                 WHERE o.state = 'queued' AND o.place = 'worker' AND o.kind = claim_turns.kind
                   AND o.tenant COLLATE "C" = whose
                 ORDER BY o.priority DESC LIMIT 1)
                UNION ALL
                SELECT (SELECT o.priority FROM :"schema".open_jobs AS o
                        WHERE o.state = 'queued' AND o.place = 'worker' AND o.kind = claim_turns.kind
                          AND o.tenant COLLATE "C" = whose AND o.priority < level.priority
                        ORDER BY o.priority DESC LIMIT 1)
                FROM level WHERE level.priority > floor
            )
            SELECT array_agg(next.id) INTO ids
            FROM (SELECT due.id
                  FROM level CROSS JOIN LATERAL (
                      SELECT o.id FROM :"schema".open_jobs AS o
                      WHERE o.state = 'queued' AND o.place = 'worker' AND o.kind = claim_turns.kind
                        AND o.tenant COLLATE "C" = whose AND o.priority = level.priority AND o.run_after <= clock
                      ORDER BY o.run_after, o.id
                      LIMIT quota
                      FOR UPDATE SKIP LOCKED
                  ) AS due
                  WHERE level.priority >= floor
                  LIMIT quota) AS next;
        END IF;

        IF ids IS NOT NULL THEN
            RETURN QUERY
            UPDATE :"schema".open_jobs AS j
            SET state = 'leased', leased_by = holder, lease_epoch = j.lease_epoch + 1,
                lease_until = clock + make_interval(secs => lease_s), heartbeat_at = clock, started_at = clock,
                tries = j.tries + 1, max_tries = coalesce(j.max_tries, kind_tries), counted = counts
            WHERE j.id = ANY (ids)
            RETURNING j.*;
            taken := taken + cardinality(ids);
        END IF;
        EXIT WHEN NOT by_turns;
        IF cardinality(ids) = share THEN
            more := more || whose;
        END IF;
        IF tour = 2 THEN
            whose := '';
            tour := 3;
        END IF;
    END LOOP;

    IF rate_jobs IS NOT NULL AND taken > 0 THEN
        INSERT INTO :"schema".starts AS s (kind, slice_at, jobs) VALUES (kind, slice, taken)
        ON CONFLICT ON CONSTRAINT starts_pkey DO UPDATE SET jobs = s.jobs + EXCLUDED.jobs
        RETURNING s.jobs INTO quota;
        IF quota = taken THEN
            -- The first of its slice takes away what no window touches any more.
            DELETE FROM :"schema".starts AS s
            WHERE s.kind = claim_turns.kind AND s.slice_at < slice - make_interval(secs => rate_s * 2);
        END IF;
    END IF;
END
$function$;
