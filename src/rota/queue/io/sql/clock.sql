-- The database's clock, for a holder that wants to speak of what was before now (I5).
-- Parameters: none.
-- Rows: one: now timestamptz.
-- Locks: none.
-- Index: none.
SELECT now() AS now
