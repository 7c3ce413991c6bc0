-- Finds the leases that a holder does not know of, because the answer to its claim was lost, and lets them run out at
-- once: the next sweep takes them as any other lease that ran out, but the try is not counted, for nothing ran. A
-- lease that ran out is left alone, so that asking again takes no second try off. A lease that was claimed later than
-- the holder asked is left alone too: this statement may wait on a line that its holder has given up, and it may have
-- claimed anew since (I2).
-- Parameters: $1 holder text, $2 jobs that it knows uuid[], $3 claimed at this time or earlier timestamptz (by the
--   database's clock, as clock.sql told it before), $4 now timestamptz or null.
-- Rows: id of each such job.
-- Locks: the rows, FOR UPDATE SKIP LOCKED.
-- Index: open_jobs_lease (all leased rows; a claim's answer is seldom lost).
UPDATE :"schema".open_jobs AS j
SET lease_until = coalesce($4::timestamptz, now()) - interval '1 microsecond',
    tries = greatest(j.tries - 1, 0)
WHERE j.id = ANY (ARRAY(
    SELECT o.id FROM :"schema".open_jobs AS o
    WHERE o.state = 'leased' AND o.leased_by = $1 AND o.id <> ALL ($2::uuid[])
      AND o.started_at <= $3::timestamptz
      AND o.lease_until > coalesce($4::timestamptz, now())
    FOR UPDATE SKIP LOCKED))
RETURNING j.id
