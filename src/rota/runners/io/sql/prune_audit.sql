-- Removes events of the audit trail after their retention, the oldest first, a piece at a time.
-- Parameters: $1 how long an event stays, seconds float8, $2 how many at most integer, $3 now timestamptz or null.
-- Rows: one: removed: how many events went.
-- Locks: the rows that go.
-- Index: runner_audit_pkey, whose order is that of time.
WITH removed AS (
    DELETE FROM :"schema".runner_audit AS a
    WHERE a.id = ANY (ARRAY(
        SELECT o.id FROM (SELECT n.id, n.at FROM :"schema".runner_audit AS n ORDER BY n.id LIMIT $2) AS o
        WHERE o.at < coalesce($3::timestamptz, now()) - make_interval(secs => $1)))
    RETURNING 1
)
SELECT count(*) AS removed FROM removed
