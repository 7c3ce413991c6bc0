-- Shows jobs whole, by id or by a range of ids (the first digits of one, as a person types them).
-- Parameters: $1 lowest id uuid, $2 highest id uuid, $3 how many at most integer.
-- A person may have set a time that Python does not know, such as 'infinity': the nearest that it does is given.
-- Rows: every column of the view jobs, newest first.
-- Locks: none.
-- Index: the primary keys.
SELECT j.id, j.kind, j.tenant, j.priority, j.state, j.place, j.tries, j.max_tries,
       least(greatest(j.run_after, '0001-01-02 00:00+00'), '9999-12-30 00:00+00') AS run_after,
       least(greatest(j.created_at, '0001-01-02 00:00+00'), '9999-12-30 00:00+00') AS created_at,
       j.started_at, j.finished_at, j.heartbeat_at, j.lease_until, j.lease_epoch, j.leased_by, j.dedupe_key,
       j.dedupe_scope, j.last_error, j.progress, j.cancel_asked_at, j.payload, j.result, j.trace, j.execution_id,
       j.parent_id, j.batch_id,
       now() AS now
FROM :"schema".jobs AS j
WHERE j.id >= $1 AND j.id <= $2
ORDER BY j.id DESC
LIMIT $3
