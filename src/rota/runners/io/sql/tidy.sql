-- Removes what no one needs any more: old nonces, a piece at a time, codes long over, rejections, credentials out of use,
-- and replicas that were not seen for a day.
-- Parameters: $1 how long a nonce is kept, seconds float8, $2 how many nonces at most integer, $3 now timestamptz or null.
-- Rows: one: removed: how many nonces went.
-- Locks: the rows that go.
-- Index: runner_nonces_seen.
WITH clock AS MATERIALIZED (
    SELECT coalesce($3::timestamptz, now()) AS now
), nonces AS (
    DELETE FROM :"schema".runner_nonces AS n
    WHERE n.ctid = ANY (ARRAY(SELECT o.ctid FROM :"schema".runner_nonces AS o
                              WHERE o.seen_at < (SELECT clock.now FROM clock) - make_interval(secs => $1) LIMIT $2))
    RETURNING 1
), codes AS (
    DELETE FROM :"schema".pairing_codes AS c WHERE c.expires_at < (SELECT clock.now FROM clock) - interval '1 day'
), rejections AS (
    DELETE FROM :"schema".runner_rejections AS x WHERE x.until < (SELECT clock.now FROM clock)
), credentials AS (
    DELETE FROM :"schema".pool_credentials AS p WHERE p.expires_at < (SELECT clock.now FROM clock)
), replicas AS (
    DELETE FROM :"schema".gateways AS g WHERE g.seen_at < (SELECT clock.now FROM clock) - interval '1 day'
)
SELECT count(*) AS removed FROM nonces
