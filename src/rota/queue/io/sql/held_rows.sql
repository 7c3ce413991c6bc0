-- Says which of these open jobs somebody's transaction holds, without waiting for it: their ends wait apart.
-- Parameters: $1 ids uuid[].
-- Rows: id of each such job; one that has ended is not among them.
-- Locks: the rows that are free, FOR UPDATE SKIP LOCKED, until the statement ends.
-- Index: open_jobs_pkey, one look for each id whatever the statistics say.
WITH given AS MATERIALIZED (
    SELECT g.id FROM unnest($1::uuid[]) AS g(id)
), free AS MATERIALIZED (
    SELECT given.id
    FROM given CROSS JOIN LATERAL (
        SELECT FROM :"schema".open_jobs AS o WHERE o.id = given.id FOR UPDATE SKIP LOCKED
    ) AS locked
)
SELECT given.id
-- LIMIT: one look for each; as a join it might walk the table.
FROM given CROSS JOIN LATERAL (SELECT FROM :"schema".open_jobs AS o WHERE o.id = given.id LIMIT 1) AS there
WHERE given.id NOT IN (SELECT free.id FROM free)
