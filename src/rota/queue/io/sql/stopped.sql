-- Notes when holders really stopped runs whose leases they had lost, and says how long each had run beside another.
-- It changes no job, so an older epoch may speak (I3); the first word about a run stands.
-- Parameters: $1 ids uuid[] (ascending), $2 epochs bigint[], $3 holder text, $4 seconds since it stopped float8[],
--   $5 now timestamptz or null.
-- Rows: id, epoch, overlap_s float8 of each run that was noted.
-- Locks: the tries' rows, in the order of the ids.
-- Index: tries_pkey.
WITH given AS MATERIALIZED (
    SELECT g.id, g.epoch, coalesce($5::timestamptz, now()) - make_interval(secs => g.ago_s) AS stopped_at,
           coalesce($5::timestamptz, now()) AS now
    FROM unnest($1::uuid[], $2::bigint[], $4::double precision[]) AS g(id, epoch, ago_s)
)
UPDATE :"schema".tries AS t
SET stopped_at = given.stopped_at
FROM given
WHERE t.job_id BETWEEN given.id AND given.id AND t.epoch = given.epoch AND t.holder = $3 AND t.stopped_at IS NULL
RETURNING t.job_id AS id, t.epoch,
          :"schema".overlap_s(t.job_id, t.epoch, t.holder, given.stopped_at, given.now) AS overlap_s
