-- Keeps what a runner says of its progress, for people. Fenced by epoch (I3). It moves no lease.
-- Parameters: $1 id uuid, $2 epoch bigint, $3 progress jsonb.
-- Rows: id; none if the lease is lost.
-- Locks: the row.
-- Index: open_jobs_pkey.
UPDATE :"schema".open_jobs AS j SET progress = $3
WHERE j.id = $1 AND j.lease_epoch = $2 AND j.state || '' = 'leased'
RETURNING j.id
