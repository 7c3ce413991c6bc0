-- Says that a worker process is there, what it takes and what it runs; at its start and every 15 seconds. Also removes
-- rows of processes that ended without a word long ago.
-- Parameters: $1 holder text, $2 host text, $3 pid integer, $4 version text, $5 role text, $6 settings digest text,
--   $7 kinds jsonb (with limits), $8 running jsonb, $9 passes jsonb, $10 draining boolean,
--   $11 limits jsonb (of kinds, over all servers), $12 stale_s float8 (how long a silent row stays),
--   $13 facts jsonb (what holds its jobs back, see rota.queue.standing), $14 now timestamptz or null.
-- Rows: one: seen_at timestamptz, the database's clock.
-- Locks: the process's own row; the removed rows, FOR UPDATE SKIP LOCKED.
-- Index: servers_pkey; the stale are found by reading the table, one row for each process.
WITH clock AS MATERIALIZED (
    SELECT coalesce($14::timestamptz, now()) AS now
), stale AS MATERIALIZED (
    SELECT s.holder FROM :"schema".servers AS s CROSS JOIN clock
    WHERE s.seen_at < clock.now - make_interval(secs => $12) AND s.holder <> $1
    FOR UPDATE OF s SKIP LOCKED
), removed AS (
    DELETE FROM :"schema".servers AS s WHERE s.holder = ANY (ARRAY(SELECT stale.holder FROM stale))
)
INSERT INTO :"schema".servers AS s
    (holder, host, pid, version, role, settings_digest, kinds, running, passes, draining, limits, facts, started_at,
     seen_at)
SELECT $1, $2, $3, $4, $5, $6, $7::jsonb, $8::jsonb, $9::jsonb, $10, $11::jsonb, $13::jsonb, clock.now, clock.now FROM clock
ON CONFLICT (holder) DO UPDATE
    SET running = EXCLUDED.running, draining = EXCLUDED.draining, facts = EXCLUDED.facts, seen_at = EXCLUDED.seen_at
RETURNING s.seen_at
