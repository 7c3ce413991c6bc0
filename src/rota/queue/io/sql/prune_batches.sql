-- Removes batches that ended longer ago than their jobs are kept, and windows of throttle keys that are over.
-- Parameters: $1 keep_s float8, $2 how many at most of each integer, $3 now timestamptz or null.
-- Rows: one: removed bigint.
-- Locks: the removed rows, FOR UPDATE SKIP LOCKED.
-- Index: batches_ended and throttle_keys_until to find, the primary keys to remove.
WITH clock AS MATERIALIZED (
    SELECT coalesce($3::timestamptz, now()) AS now
), batches AS (
    DELETE FROM :"schema".batches AS b WHERE b.id = ANY (ARRAY(
        SELECT old.id FROM :"schema".batches AS old
        WHERE old.ended_at IS NOT NULL AND old.ended_at < (SELECT clock.now FROM clock) - make_interval(secs => $1)
        LIMIT $2 FOR UPDATE SKIP LOCKED))
    RETURNING 1
), windows AS (
    DELETE FROM :"schema".throttle_keys AS t WHERE t.dedupe_key = ANY (ARRAY(
        SELECT old.dedupe_key FROM :"schema".throttle_keys AS old
        WHERE old.until < (SELECT clock.now FROM clock)
        LIMIT $2 FOR UPDATE SKIP LOCKED))
    RETURNING 1
)
SELECT (SELECT count(*) FROM batches) + (SELECT count(*) FROM windows) AS removed
