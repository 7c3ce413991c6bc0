-- Takes back what wait.sql said: this holder is busy or gone. Also removes what dead holders left behind.
-- Parameters: $1 holder text.
-- Rows: none.
-- Locks: the removed rows.
-- Index: none; the table holds one row for each sleeping process.
DELETE FROM :"schema".waiting AS w WHERE w.holder = $1 OR w.until < now() - interval '1 minute'
