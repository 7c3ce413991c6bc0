-- Takes the next due jobs of each kind, one lease each (I2, I3): state, holder, epoch + 1, tries + 1, lease.
-- Order within a kind: highest priority, oldest run_after, oldest job. The walk goes from priority to priority and
-- reads, in each, only rows that are due, so jobs of the future cost nothing. Jobs of paused tenants are passed over.
-- Parameters: $1 kinds text[], $2 free slots integer[], $3 lease_s float8[], $4 max_tries of the kind integer[],
--   $5 holder text, $6 now timestamptz or null for the database's clock.
-- Rows: the claimed jobs, in no order; the caller sorts.
-- Locks: the claimed rows, FOR UPDATE SKIP LOCKED; a row that another claim holds is passed over.
-- Index: open_jobs_next to find, open_jobs_pkey to update (an array of ids whatever the statistics say).
WITH asked AS MATERIALIZED (
    SELECT a.kind, a.free, a.lease_s, a.max_tries, coalesce($6::timestamptz, now()) AS now
    FROM unnest($1::text[], $2::integer[], $3::double precision[], $4::integer[]) AS a(kind, free, lease_s, max_tries)
)
UPDATE :"schema".open_jobs AS j
SET state = 'leased',
    leased_by = $5,
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
            (SELECT o.priority FROM :"schema".open_jobs AS o
             WHERE o.state = 'queued' AND o.place = 'worker' AND o.kind = k.kind
             ORDER BY o.priority DESC LIMIT 1)
            UNION ALL
            SELECT (SELECT o.priority FROM :"schema".open_jobs AS o
                    WHERE o.state = 'queued' AND o.place = 'worker' AND o.kind = k.kind AND o.priority < level.priority
                    ORDER BY o.priority DESC LIMIT 1)
            FROM level WHERE level.priority IS NOT NULL
        )
        SELECT due.id
        FROM level CROSS JOIN LATERAL (
            SELECT o.id FROM :"schema".open_jobs AS o
            WHERE o.state = 'queued' AND o.place = 'worker' AND o.kind = k.kind AND o.priority = level.priority
              AND o.run_after <= k.now
              AND (o.tenant IS NULL OR o.tenant <> ALL (ARRAY(
                  SELECT p.name FROM :"schema".pauses AS p
                  WHERE p.scope = 'tenant' AND (p.until IS NULL OR p.until > coalesce($6::timestamptz, now())))))
            ORDER BY o.run_after, o.id
            LIMIT k.free
            FOR UPDATE SKIP LOCKED
        ) AS due
        WHERE level.priority IS NOT NULL
        LIMIT k.free
    ) AS next
  ))
RETURNING j.id, j.kind, j.tenant, j.payload, j.priority, j.lease_epoch, j.tries, j.max_tries, j.run_after,
          j.created_at, j.dedupe_scope, j.progress, j.trace
