-- Takes back what serve.sql said: this process ends.
-- Parameters: $1 holder text.
-- Rows: none.
-- Locks: the removed row.
-- Index: servers_pkey.
DELETE FROM :"schema".servers AS s WHERE s.holder = $1
