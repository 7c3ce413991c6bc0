-- Takes the next due jobs of kinds that have limits beyond one server, as claim.sql does of others, by a function that
-- counts and takes in one transaction. What is limited: jobs of the kind, and of each tenant in it, that run in all
-- (by live leases: one that ran out does not count), and jobs that start in a window. By turns: one job of each tenant
-- that has due work and room, from the tenant behind the last turn on, in the order of bytes; what is left of the room
-- in equal shares. Within a tenant, or without turns, the order is that of claim.sql.
-- Parameters, one element for each kind, kinds ascending: $1 kinds text[], $2 free slots integer[], $3 lease_s
--   float8[], $4 max_tries of the kind integer[], $5 lowest priority integer[], $6 fleet limits integer[], $7 tenant
--   limits integer[], $8 by turns boolean[], $9 whose turn was the last text[], $10 starts in a window integer[],
--   $11 the window's seconds float8[] (each of them, from $5 on, null for none); $12 holder text, $13 now timestamptz
--   or null for the database's clock.
-- A person may have set a time that Python does not know, such as 'infinity': the nearest that it does is given.
-- Rows: the claimed jobs, in no order.
-- Locks: the claimed rows, FOR UPDATE SKIP LOCKED; for a kind that counts, its claims come one after the other by
--   an advisory lock, in the order of the kinds.
-- Index: open_jobs_next or open_jobs_turn to find, open_jobs_counted to count, open_jobs_pkey to write, starts_pkey.
SELECT j.id, j.kind, j.tenant, j.payload, j.priority, j.lease_epoch, j.tries, j.max_tries,
       least(greatest(j.run_after, '0001-01-02 00:00+00'), '9999-12-30 00:00+00'),
       least(greatest(j.created_at, '0001-01-02 00:00+00'), '9999-12-30 00:00+00'), j.dedupe_scope, j.progress, j.trace
FROM unnest($1::text[], $2::integer[], $3::double precision[], $4::integer[], $5::integer[], $6::integer[],
            $7::integer[], $8::boolean[], $9::text[], $10::integer[], $11::double precision[])
     AS a(kind, free, lease_s, max_tries, lowest, fleet_limit, tenant_limit, by_turns, turn_after, rate_jobs, rate_s)
CROSS JOIN LATERAL :"schema".claim_turns(
    a.kind, a.free, a.lease_s, a.max_tries, a.lowest, a.fleet_limit, a.tenant_limit, a.by_turns, a.turn_after,
    a.rate_jobs, a.rate_s, $12, $13::timestamptz) AS j
