-- One job costs the server less. A call of an SQL function that the planner may not write out takes it some 7 of 45 µs:
-- job_ok was one, because it said to be immutable and asks for a size, which is only stable.
ALTER FUNCTION :"schema".job_ok(
    text, jsonb, text, text, timestamptz, double precision, integer, text, double precision) STABLE;

-- As in 0002_flow.sql, but for the id and the question who waits, which stand here and are no calls.
CREATE OR REPLACE FUNCTION :"schema".enqueue(
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
    us    bigint;
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
    -- As uuid_v7_head and uuid_v7_tail make them. A float8 of today's seconds still tells the microseconds apart.
    us := date_part('epoch', coalesce(at, clock_timestamp())) * 1000000;
    id := lpad(to_hex((us / 1000) << 16 | 28672 | (us % 1000) * 4096 / 1000), 16, '0')
          || right(replace(gen_random_uuid()::text, '-', ''), 16);
    created := true;
    INSERT INTO :"schema".open_jobs
        (id, kind, payload, priority, tenant, run_after, max_tries, trace, place, execution_id, parent_id, batch_id,
         created_at)
    VALUES (id, kind, payload, coalesce(priority, 0), tenant, due, max_tries, trace, coalesce(place, 'worker'),
            execution_id, parent_id, batch_id, clock);
    -- Asked after the job is there, as everywhere: who begins to wait meanwhile is seen.
    IF due <= clock AND EXISTS (SELECT FROM :"schema".waiting AS w WHERE w.until > clock AND kind = ANY (w.kinds)) THEN
        PERFORM :"schema".wake(ARRAY[kind], clock);
    END IF;
END
$function$;
