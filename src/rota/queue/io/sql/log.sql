-- Keeps lines that handlers logged, many in one statement. A line that is there already (its answer was lost) stays.
-- Parameters: $1 ids uuid[], $2 epochs bigint[], $3 numbers integer[], $4 seconds since they were said float8[],
--   $5 levels text[], $6 events text[], $7 fields jsonb[], $8 runs of a job whose lines are kept integer,
--   $9 now timestamptz or null.
-- Rows: none.
-- Locks: the lines' rows; lines of a job that is gone are dropped.
-- Index: open_jobs_pkey, ended_jobs_pkey, job_logs_pkey (BETWEEN: see finish.sql).
WITH given AS MATERIALIZED (
    SELECT g.id, g.epoch, g.number, coalesce($9::timestamptz, now()) - make_interval(secs => g.ago_s) AS logged_at,
           g.level, g.event, g.fields
    FROM unnest($1::uuid[], $2::bigint[], $3::integer[], $4::double precision[], $5::text[], $6::text[], $7::jsonb[])
         AS g(id, epoch, number, ago_s, level, event, fields)
), runs AS MATERIALIZED (
    SELECT given.id, max(given.epoch) AS epoch FROM given
    GROUP BY given.id
    HAVING EXISTS (SELECT FROM :"schema".open_jobs AS o WHERE o.id BETWEEN given.id AND given.id)
        OR EXISTS (SELECT FROM :"schema".ended_jobs AS e WHERE e.id BETWEEN given.id AND given.id)
), added AS (
    INSERT INTO :"schema".job_logs (job_id, epoch, number, logged_at, level, event, fields)
    SELECT given.id, given.epoch, given.number, given.logged_at, given.level, given.event, given.fields
    FROM given JOIN runs ON runs.id = given.id
    ORDER BY given.id, given.epoch, given.number
    ON CONFLICT DO NOTHING
)
DELETE FROM :"schema".job_logs AS l USING runs
WHERE l.job_id BETWEEN runs.id AND runs.id AND l.epoch <= runs.epoch - $8
