-- Takes back that jobs of a rate-limited kind started: they are given back without having begun. A lease is taken back
-- once, because its start is forgotten with it.
-- Parameters: $1 ids uuid[] (ascending), $2 epochs bigint[], $3 the window's seconds float8, $4 holder
--   text (null: whoever holds them).
-- Rows: id of each job whose start no longer counts.
-- Locks: the rows, in the order of the ids, and the slices in which they were counted.
-- Index: open_jobs_pkey (BETWEEN: see finish.sql), starts_pkey.
WITH given AS MATERIALIZED (
    SELECT g.id, g.epoch FROM unnest($1::uuid[], $2::bigint[]) AS g(id, epoch)
), held AS MATERIALIZED (
    SELECT given.id, locked.kind, :"schema".slice_at(locked.started_at, $3) AS slice_at
    FROM given CROSS JOIN LATERAL (
        SELECT o.kind, o.started_at FROM :"schema".open_jobs AS o
        WHERE o.id = given.id AND o.lease_epoch = given.epoch AND o.state || '' = 'leased'
          AND o.leased_by = coalesce($4::text, o.leased_by)
          AND o.started_at IS NOT NULL
        FOR UPDATE
    ) AS locked
), taken_back AS (
    UPDATE :"schema".starts AS s
    SET jobs = greatest(s.jobs - counted.jobs, 0)
    FROM (SELECT kind, slice_at, count(*) AS jobs FROM held GROUP BY kind, slice_at ORDER BY kind, slice_at) AS counted
    WHERE s.kind = counted.kind AND s.slice_at = counted.slice_at
)
UPDATE :"schema".open_jobs AS j
SET started_at = NULL
FROM held
WHERE j.id BETWEEN held.id AND held.id
RETURNING j.id
