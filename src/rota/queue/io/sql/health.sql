-- What the database says of itself, and what it grants this session.
-- Parameters: none.
-- Rows: one: version_num integer, version text, in_recovery boolean, read_only_by text (who set
--   default_transaction_read_only, as pg_settings.source has it; null: it is off), statement_timeout text, lock_timeout text,
--   idle_timeout text, fsync text, synchronous_commit text, autovacuum text, connections integer,
--   connections_max integer, notify_usage float8 (0 to 1, of the queue of notifications), hidden text[] (tables of Rota
--   of which row-level security hides rows from this user).
-- Locks: none.
-- Index: none; these are the server's own views.
SELECT current_setting('server_version_num')::integer AS version_num,
       current_setting('server_version') AS version,
       pg_is_in_recovery() AS in_recovery,
       (SELECT s.source FROM pg_settings AS s
        WHERE s.name = 'default_transaction_read_only' AND s.setting = 'on') AS read_only_by,
       current_setting('statement_timeout') AS statement_timeout,
       current_setting('lock_timeout') AS lock_timeout,
       current_setting('idle_in_transaction_session_timeout') AS idle_timeout,
       current_setting('fsync') AS fsync,
       current_setting('synchronous_commit') AS synchronous_commit,
       current_setting('autovacuum') AS autovacuum,
       (SELECT count(*)::integer FROM pg_stat_activity AS a WHERE a.backend_type = 'client backend') AS connections,
       current_setting('max_connections')::integer AS connections_max,
       pg_notification_queue_usage() AS notify_usage,
       ARRAY(SELECT c.relname::text FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
             WHERE n.nspname = :'schema' AND c.relkind = 'r' AND row_security_active(c.oid) ORDER BY 1) AS hidden
