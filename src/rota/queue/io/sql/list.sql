-- Lists jobs, newest first, one page (keyset: the page goes on below the last id of the one before).
-- Parameters, each null for "any": $1 kinds text[], $2 states text[], $3 tenant text, $4 older_s float8 and
--   $5 newer_s float8 (age since created, in seconds), $6 below uuid, $7 how many at most integer, $8 now or null.
-- A person may have set a time that Python does not know, such as 'infinity': the nearest that it does is given.
-- Rows: the columns of the view jobs, without payload and result.
-- Locks: none.
-- Index: the primary keys, or ended_jobs_not_done where only such states are asked for.
SELECT j.id, j.kind, j.tenant, j.priority, j.state, j.place, j.tries, j.max_tries,
       least(greatest(j.run_after, '0001-01-02 00:00+00'), '9999-12-30 00:00+00') AS run_after,
       least(greatest(j.created_at, '0001-01-02 00:00+00'), '9999-12-30 00:00+00') AS created_at,
       j.started_at, j.finished_at, j.heartbeat_at, j.lease_until, j.lease_epoch, j.leased_by, j.dedupe_key,
       j.dedupe_scope, j.last_error, j.progress, j.cancel_asked_at, j.parent_id, j.batch_id,
       coalesce($8::timestamptz, now()) AS now
FROM :"schema".jobs AS j
WHERE ($1::text[] IS NULL OR j.kind = ANY ($1))
  AND ($2::text[] IS NULL OR j.state = ANY ($2))
  AND ($3::text IS NULL OR j.tenant = $3)
  AND ($4::double precision IS NULL
       OR j.created_at <= coalesce($8::timestamptz, now()) - make_interval(secs => $4))
  AND ($5::double precision IS NULL
       OR j.created_at >= coalesce($8::timestamptz, now()) - make_interval(secs => $5))
  AND ($6::uuid IS NULL OR j.id < $6)
ORDER BY j.id DESC
LIMIT $7
