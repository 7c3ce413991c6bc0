-- Moves queued jobs in the line: another priority, another time, or both.
-- Parameters: $1 ids uuid[] (ascending), $2 priority integer (null: keep), $3 run_after timestamptz (null: keep),
--   $4 delay_s float8 from now, in place of run_after (null: none), $5 now timestamptz or null.
-- Rows: id, state of each open job among them; a leased one was left as it is.
-- Locks: the rows, in the order of the ids; a NOTIFY at commit if one is due and somebody waits.
-- Index: open_jobs_pkey, one look for each id whatever the statistics say (BETWEEN: see finish.sql).
WITH clock AS MATERIALIZED (
    SELECT coalesce($5::timestamptz, now()) AS now
), held AS MATERIALIZED (
    SELECT given.id, locked.state
    FROM unnest($1::uuid[]) AS given(id) CROSS JOIN LATERAL (
        SELECT o.state FROM :"schema".open_jobs AS o WHERE o.id = given.id FOR UPDATE
    ) AS locked
), moved AS (
    UPDATE :"schema".open_jobs AS j
    SET priority = coalesce($2::integer, j.priority),
        run_after = coalesce(clock.now + make_interval(secs => $4::double precision), $3::timestamptz, j.run_after)
    FROM held CROSS JOIN clock
    WHERE j.id BETWEEN held.id AND held.id AND held.state = 'queued'
    RETURNING j.kind, j.run_after <= clock.now AS due
), woken AS (
    SELECT :"schema".wake(array_agg(moved.kind)) FROM moved WHERE moved.due HAVING count(*) > 0
)
SELECT held.id, held.state, (SELECT count(*) FROM woken) AS woken FROM held
