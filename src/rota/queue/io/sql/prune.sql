-- Removes ended jobs after their retention, a piece at a time: short locks, and no two servers on the same rows.
-- Those of a batch stay until it is closed: they are counted then.
-- Parameters: $1 keep_s float8 (how long a job stays after it ended), $2 how many at most integer, $3 now or null.
-- Rows: one: removed bigint.
-- Locks: the removed rows, FOR UPDATE SKIP LOCKED.
-- Index: batches_pkey; ended_jobs_finished to find, then the rows' own addresses.
WITH old AS (
    SELECT e.ctid AS address FROM :"schema".ended_jobs AS e
    WHERE e.finished_at < coalesce($3::timestamptz, now()) - make_interval(secs => $1)
      AND (e.batch_id IS NULL OR NOT EXISTS (SELECT FROM :"schema".batches AS b
                                             WHERE b.id = e.batch_id AND b.ended_at IS NULL))
    LIMIT $2
    FOR UPDATE SKIP LOCKED
), removed AS (
    DELETE FROM :"schema".ended_jobs AS e WHERE e.ctid = ANY (ARRAY(SELECT old.address FROM old)) RETURNING 1
)
SELECT count(*) AS removed FROM removed
