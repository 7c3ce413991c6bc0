-- Says that this holder sleeps and wants to be woken for these kinds; enqueueing notifies only while somebody does.
-- Parameters: $1 holder text, $2 kinds text[], $3 for how long float8 (seconds; the holder says it again before).
-- Rows: none.
-- Locks: the holder's own row.
-- Index: waiting_pkey.
INSERT INTO :"schema".waiting AS w (holder, kinds, until)
VALUES ($1, $2::text[], now() + make_interval(secs => $3))
ON CONFLICT (holder) DO UPDATE SET kinds = EXCLUDED.kinds, until = EXCLUDED.until
