-- Takes the next due jobs of each kind, one lease each (I2, I3): state, holder, epoch + 1, tries + 1, lease.
-- Order within a kind: highest priority, oldest run_after, oldest job. The walk goes from priority to priority and
-- reads, in each, only rows that are due, so jobs of the future cost nothing. Where it is given a mark (queue/marks.py)
-- it begins there, so what is dead before it costs nothing either; other priorities are found as ever. Jobs of paused
-- tenants are passed over.
-- Parameters: $1 kinds text[], $2 free slots integer[], $3 lease_s float8[], $4 max_tries of the kind integer[],
--   $5 lowest priority of each kind integer[] (null: any); marks: $6 kinds text[], $7 priorities integer[],
--   $8 run_afters timestamptz[] and $9 ids uuid[] of the jobs that they are behind, or else $10 ages float8[] (seconds
--   since when nothing due was left); $11 holder text, $12 now timestamptz or null for the database's clock.
-- A person may have set a time that Python does not know, such as 'infinity': the nearest that it does is given.
-- Rows: the claimed jobs, in no order; the caller sorts.
-- Locks: the claimed rows, FOR UPDATE SKIP LOCKED; a row that another claim holds is passed over.
-- Index: open_jobs_next to find, open_jobs_pkey to update (an array of ids whatever the statistics say).
WITH asked AS MATERIALIZED (
    SELECT a.kind, a.free, a.lease_s, a.max_tries, coalesce(a.lowest, -2147483648) AS lowest,
           coalesce($12::timestamptz, now()) AS now
    FROM unnest($1::text[], $2::integer[], $3::double precision[], $4::integer[], $5::integer[])
         AS a(kind, free, lease_s, max_tries, lowest)
), mark AS MATERIALIZED (
    -- A second behind the clock at the latest: a job is due from the begin of the transaction that adds it.
    SELECT m.kind, m.priority, m.id,
           least(m.run_after, coalesce($12::timestamptz, now()) - make_interval(secs => 1 + coalesce(m.age_s, 0)))
           AS run_after
    FROM unnest($6::text[], $7::integer[], $8::timestamptz[], $9::uuid[], $10::double precision[])
         AS m(kind, priority, run_after, id, age_s)
)
UPDATE :"schema".open_jobs AS j
SET state = 'leased',
    leased_by = $11,
    lease_epoch = j.lease_epoch + 1,
    lease_until = asked.now + make_interval(secs => asked.lease_s),
    heartbeat_at = asked.now,
    started_at = asked.now,
    tries = j.tries + 1,
    max_tries = coalesce(j.max_tries, asked.max_tries)
FROM asked
WHERE asked.kind = j.kind
  AND j.id = ANY (ARRAY(
    SELECT next.id
    FROM asked AS k CROSS JOIN LATERAL (
        WITH RECURSIVE level(priority) AS (
            SELECT 2147483648
            UNION ALL
            -- The next lower one that has a mark, or a row between that and this one.
            SELECT (SELECT greatest(known.priority,
                                    (SELECT o.priority FROM :"schema".open_jobs AS o
                                     WHERE o.state = 'queued' AND o.place = 'worker' AND o.kind = k.kind
                                       AND o.priority < level.priority AND o.priority > known.priority
                                     ORDER BY o.priority DESC LIMIT 1))
                    FROM (SELECT coalesce(max(mark.priority), -2147483649) AS priority FROM mark
                          WHERE mark.kind = k.kind AND mark.priority < level.priority) AS known)
            FROM level WHERE level.priority > k.lowest
        )
        SELECT due.id
        FROM level
        LEFT JOIN mark ON mark.kind = k.kind AND mark.priority = level.priority
        CROSS JOIN LATERAL (
            SELECT o.id FROM :"schema".open_jobs AS o
            WHERE o.state = 'queued' AND o.place = 'worker' AND o.kind = k.kind AND o.priority = level.priority
              AND o.run_after <= k.now
              AND (o.run_after, o.id) > (coalesce(mark.run_after, '-infinity'),
                                         coalesce(mark.id, '00000000-0000-0000-0000-000000000000'))
              AND (o.tenant IS NULL OR o.tenant <> ALL (ARRAY(
                  SELECT p.name FROM :"schema".pauses AS p
                  WHERE p.scope = 'tenant' AND (p.until IS NULL OR p.until > coalesce($12::timestamptz, now())))))
            ORDER BY o.run_after, o.id
            LIMIT k.free
            FOR UPDATE SKIP LOCKED
        ) AS due
        WHERE level.priority BETWEEN k.lowest AND 2147483647
        LIMIT k.free
    ) AS next
  ))
RETURNING j.id, j.kind, j.tenant, j.payload, j.priority, j.lease_epoch, j.tries, j.max_tries,
          least(greatest(j.run_after, '0001-01-02 00:00+00'), '9999-12-30 00:00+00'),
          least(greatest(j.created_at, '0001-01-02 00:00+00'), '9999-12-30 00:00+00'), j.dedupe_scope, j.progress, j.trace
