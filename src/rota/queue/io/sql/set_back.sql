-- Brings back to now what was written under a later clock: the database's clock has been set back since. Else the
-- leases of dead holders, starts that a rate counts, and new jobs would stand until the clock has caught up. A lease is
-- counted anew from now, so no holder loses any of it; one that lives renews it as ever.
-- Parameters: $1 seconds that a time may be ahead float8, $2 now timestamptz or null.
-- Rows: one: leases bigint, due bigint (jobs that were due at once and whose time had not come again).
-- Locks: the rows, FOR UPDATE SKIP LOCKED: a row that its holder is writing needs nothing.
-- Index: open_jobs_lease (all leased rows), open_jobs_pkey (an id begins with the time at which its job was added).
WITH clock AS MATERIALIZED (
    SELECT coalesce($2::timestamptz, now()) AS now,
           coalesce($2::timestamptz, now()) + make_interval(secs => $1) AS ahead
), leased AS MATERIALIZED (
    SELECT o.id FROM :"schema".open_jobs AS o
    WHERE o.state = 'leased' AND o.place = 'worker' AND o.lease_until > (SELECT clock.ahead FROM clock)
      AND o.heartbeat_at > (SELECT clock.ahead FROM clock)
    FOR UPDATE SKIP LOCKED
), waiting AS MATERIALIZED (
    SELECT o.id FROM :"schema".open_jobs AS o
    WHERE o.id > (SELECT (:"schema".uuid_v7_head(clock.ahead, 0) || '0000000000000000')::uuid FROM clock)
      AND o.state || '' = 'queued' AND o.created_at > (SELECT clock.ahead FROM clock) AND o.run_after = o.created_at
    FOR UPDATE SKIP LOCKED
), held AS (
    UPDATE :"schema".open_jobs AS j
    SET lease_until = clock.now + (j.lease_until - j.heartbeat_at), heartbeat_at = clock.now
    FROM clock WHERE j.id = ANY (ARRAY(SELECT leased.id FROM leased))
), due AS (
    UPDATE :"schema".open_jobs AS j
    SET run_after = clock.now
    FROM clock WHERE j.id = ANY (ARRAY(SELECT waiting.id FROM waiting))
), started AS (
    DELETE FROM :"schema".starts AS s USING clock WHERE s.slice_at > clock.ahead
), seen AS (
    UPDATE :"schema".servers AS s SET seen_at = clock.now FROM clock WHERE s.seen_at > clock.ahead
)
SELECT (SELECT count(*) FROM leased) AS leases, (SELECT count(*) FROM waiting) AS due
