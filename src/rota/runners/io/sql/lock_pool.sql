-- One claim for the pool after the other until the transaction ends, so that each counts what the one before took.
-- Parameters: none.
-- Rows: one, of nothing.
-- Locks: an advisory lock of the transaction.
-- Index: none.
SELECT pg_advisory_xact_lock(hashtext(:'schema' || ' runner pool'))
