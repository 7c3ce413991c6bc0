-- The live and dead rows of Rota's tables, as the statistics have them, and how long ago each was vacuumed.
-- Parameters: none.
-- Rows: name text, live bigint, dead bigint, vacuumed_ago_s float8 (null: never since the statistics began).
-- Locks: none.
-- Index: none; these are the server's own views.
SELECT t.relname::text AS name, t.n_live_tup AS live, t.n_dead_tup AS dead,
       extract(epoch FROM now() - greatest(t.last_vacuum, t.last_autovacuum))::double precision AS vacuumed_ago_s
FROM pg_stat_user_tables AS t
WHERE t.schemaname = :'schema'
ORDER BY t.relname
