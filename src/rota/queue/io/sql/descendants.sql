-- Finds the open jobs that these jobs added as their children, and the children of those, and so on, also through jobs
-- that have ended.
-- Parameters: $1 ids uuid[].
-- Rows: id of each open descendant.
-- Locks: none.
-- Index: open_jobs_parent and ended_jobs_parent.
WITH RECURSIVE family(id, open) AS (
    SELECT given.id, false FROM unnest($1::uuid[]) AS given(id)
    UNION
    SELECT child.id, child.open
    FROM family CROSS JOIN LATERAL (
        SELECT o.id, true AS open FROM :"schema".open_jobs AS o WHERE o.parent_id = family.id
        UNION ALL
        SELECT e.id, false FROM :"schema".ended_jobs AS e WHERE e.parent_id = family.id
    ) AS child
)
SELECT DISTINCT family.id FROM family WHERE family.open
