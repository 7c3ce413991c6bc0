-- Takes a pass for the transaction that ends its run and writes the next one.
-- Parameters: $1 name text.
-- Rows: at most one: name.
-- Locks: the row of the pass, before any job's.
-- Index: passes_pkey.
SELECT p.name FROM :"schema".passes AS p WHERE p.name = $1 FOR UPDATE
