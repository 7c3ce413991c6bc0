-- Takes the next jobs that one runner can do, one lease each (I2, I3), and opens their sessions. Order: priority; in the
-- pool the organisation that holds fewest slots; creation. Nothing crosses from one target to another. A job whose
-- execution has an open session already gets none of its own, and runs; its id stands for it.
-- Parameters: $1 runner_id text, $2 target text, $3 org_id text (null for the pool: all), $4 job types text[],
--   $5 runtime digest text or null, $6 parts of its fontset version numeric[], $7 max output bytes bigint, $8 free slots
--   integer, $9 lease_s float8, $10 slots of one organisation in the pool integer or null, $11 gateway instance text,
--   $12 jobs that it is not given uuid[], $13 now timestamptz or null.
-- Rows: the claimed jobs with their sessions, in no order.
-- Locks: the claimed rows, FOR UPDATE SKIP LOCKED; for the pool the caller holds lock_pool.sql's.
-- Index: open_jobs_runner_next, open_jobs_runner_held, runner_jobs_pkey, runner_rejections_pkey, open_jobs_pkey,
--   disabled_organisations_pkey.
WITH clock AS MATERIALIZED (
    SELECT coalesce($13::timestamptz, now()) AS now
), held AS MATERIALIZED (
    SELECT o.tenant, count(*) AS jobs FROM :"schema".open_jobs AS o
    WHERE o.state = 'leased' AND o.place <> 'worker' AND o.place = 'CloudPool' AND $2 = 'CloudPool' GROUP BY o.tenant
), ranked AS MATERIALIZED (
    SELECT o.id, o.priority, o.created_at,
           coalesce(held.jobs, 0)
           + row_number() OVER (PARTITION BY o.tenant ORDER BY o.priority DESC, o.created_at, o.id) AS slot
    FROM :"schema".open_jobs AS o
    CROSS JOIN clock
    JOIN :"schema".runner_jobs AS r ON r.job_id = o.id
    LEFT JOIN held ON held.tenant = o.tenant
    WHERE o.state = 'queued' AND o.place <> 'worker' AND o.place = $2 AND o.run_after <= clock.now
      AND ($3::text IS NULL OR o.tenant = $3)
      AND o.kind = ANY ($4::text[]) AND o.id <> ALL ($12::uuid[])
      AND (r.runtime_digest IS NULL OR r.runtime_digest = $5::text)
      AND (r.fontset_key IS NULL OR r.fontset_key <= $6::numeric[])
      AND r.output_bytes_max <= $7::bigint
      AND NOT EXISTS (SELECT FROM :"schema".runner_rejections AS x
                      WHERE x.job_id = o.id AND x.runner_id = $1 AND x.until > clock.now)
      AND NOT EXISTS (SELECT FROM :"schema".disabled_organisations AS d WHERE d.org_id = o.tenant)
      AND NOT EXISTS (SELECT FROM :"schema".pauses AS p
                      WHERE (p.until IS NULL OR p.until > clock.now)
                        AND (p.scope = 'all' OR p.scope = 'kind' AND p.name = o.kind
                             OR p.scope = 'tenant' AND p.name = o.tenant))
), next AS MATERIALIZED (
    SELECT o.id, clock.now
    FROM ranked JOIN :"schema".open_jobs AS o ON o.id = ranked.id CROSS JOIN clock
    WHERE o.state = 'queued' AND ($2 <> 'CloudPool' OR $10::integer IS NULL OR ranked.slot <= $10)
    ORDER BY ranked.priority DESC, CASE WHEN $2 = 'CloudPool' THEN ranked.slot END, ranked.created_at, ranked.id
    LIMIT $8 FOR UPDATE OF o SKIP LOCKED
), leased AS (
    UPDATE :"schema".open_jobs AS j
    SET state = 'leased', leased_by = 'runner:' || $1, lease_epoch = j.lease_epoch + 1, heartbeat_at = next.now,
        lease_until = next.now + make_interval(secs => $9), started_at = next.now, tries = j.tries + 1, progress = NULL
    FROM next WHERE j.id BETWEEN next.id AND next.id
    RETURNING j.*, next.now
), opened AS (
    INSERT INTO :"schema".runner_sessions AS s
        (session_id, job_id, lease_epoch, execution_id, runner_id, gateway_instance, opened_at)
    SELECT gen_random_uuid(), leased.id, leased.lease_epoch, leased.execution_id, $1, $11, leased.now
    FROM leased ORDER BY leased.execution_id, leased.id
    ON CONFLICT (execution_id) WHERE closed_at IS NULL DO NOTHING
    RETURNING s.session_id, s.job_id
), facts AS (
    UPDATE :"schema".runner_jobs AS r
    SET runner_id = $1, gateway_instance = $11, accepted_at = NULL, cancel_reason = NULL, failure_class = NULL,
        failure_code = NULL, failure_retryable = NULL, claimed_class = NULL,
        session_id = (SELECT opened.session_id FROM opened WHERE opened.job_id = r.job_id),
        deadline_at = leased.now + make_interval(secs => r.timeout_s)
    FROM leased WHERE r.job_id = leased.id
    RETURNING r.*
), noted AS (
    INSERT INTO :"schema".runner_audit (at, org_id, event, runner_id, job_id, detail)
    SELECT leased.now, leased.tenant, 'job assigned', $1, leased.id, 'epoch ' || leased.lease_epoch FROM leased
)
SELECT leased.id, leased.place AS target, leased.tenant AS org_id, leased.kind AS job_type, leased.payload AS spec,
       leased.priority, leased.lease_epoch AS epoch, leased.tries, leased.created_at, leased.cancel_asked_at,
       facts.execution_id, facts.runtime_digest, facts.fontset_version, facts.output_bytes_max, facts.timeout_s,
       facts.idle_s, facts.one_shot, coalesce(facts.session_id, facts.job_id) AS session_id, facts.accepted_at,
       extract(epoch FROM facts.deadline_at - leased.now)::double precision AS left_s
FROM leased JOIN facts ON facts.job_id = leased.id
