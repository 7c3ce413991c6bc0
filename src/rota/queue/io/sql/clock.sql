-- The database's time, at this moment.
-- Parameters: none.
-- Rows: one: now timestamptz.
-- Locks: none.
-- Index: none.
SELECT clock_timestamp() AS now
