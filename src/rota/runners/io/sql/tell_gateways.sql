-- Tells all replicas something: a device was revoked, a runner connected here.
-- Parameters: $1 the word and what it is about text.
-- Rows: one, of nothing.
-- Locks: none.
-- Index: none.
SELECT pg_notify(:'schema' || '_runners', $1)
