-- Tells all replicas some things: a device was revoked, a runner connected here.
-- Parameters: $1 text[], of each the word and what it is about.
-- Rows: one for each, of nothing.
-- Locks: none.
-- Index: none.
SELECT pg_notify(:'schema' || '_runners', g.word) FROM unnest($1::text[]) AS g(word)
