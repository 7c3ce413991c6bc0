-- Removes ended jobs of one rule after their retention, with their tries and log lines, a piece at a time: short locks,
-- and no two servers on the same rows. Those of a batch stay until it is closed: they are counted then.
-- Parameters: $1 kind text (null: all kinds but those of $2), $2 kinds with a rule of their own text[], $3 failed
--   boolean (failed jobs, or all others), $4 keep_s float8 (how long a job stays after it ended), $5 ended since
--   timestamptz (null: ever; what ended before is gone already), $6 how many at most integer, $7 now or null.
-- Rows: one: removed bigint, before timestamptz (what ended before is gone, if fewer than $6 were removed).
-- Locks: the removed rows, FOR UPDATE SKIP LOCKED.
-- Index: batches_pkey; ended_jobs_finished to find, then the rows' own addresses; tries_pkey, job_logs_pkey.
WITH clock AS MATERIALIZED (
    SELECT coalesce($7::timestamptz, now()) - make_interval(secs => $4) AS before
), old AS (
    SELECT e.ctid AS address FROM :"schema".ended_jobs AS e
    WHERE e.finished_at < (SELECT clock.before FROM clock) AND e.finished_at >= coalesce($5, '-infinity'::timestamptz)
      AND (e.state = 'failed') = $3
      AND CASE WHEN $1::text IS NULL THEN e.kind <> ALL ($2::text[]) ELSE e.kind = $1 END
      AND (e.batch_id IS NULL OR NOT EXISTS (SELECT FROM :"schema".batches AS b
                                             WHERE b.id = e.batch_id AND b.ended_at IS NULL))
    LIMIT $6
    FOR UPDATE SKIP LOCKED
), removed AS (
    DELETE FROM :"schema".ended_jobs AS e WHERE e.ctid = ANY (ARRAY(SELECT old.address FROM old)) RETURNING e.id
), untried AS (
    DELETE FROM :"schema".tries AS t USING removed WHERE t.job_id BETWEEN removed.id AND removed.id
), unlogged AS (
    DELETE FROM :"schema".job_logs AS l USING removed WHERE l.job_id BETWEEN removed.id AND removed.id
)
SELECT (SELECT count(*) FROM removed) AS removed, clock.before FROM clock
