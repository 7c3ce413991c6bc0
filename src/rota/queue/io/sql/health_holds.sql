-- Who keeps vacuum from removing dead rows: sessions with an old snapshot, prepared transactions, replication slots.
-- Parameters: none.
-- Rows, the oldest first, at most 5: what text (session, standby, prepared, slot), name text (a session's process id),
--   detail text (who and what it does), age bigint (transactions since then), open_s float8 or null.
-- Locks: none.
-- Index: none; these are the server's own views.
SELECT held.what, held.name, held.detail, held.age, held.open_s
FROM (
    SELECT CASE WHEN a.backend_type = 'walsender' THEN 'standby' ELSE 'session' END AS what, a.pid::text AS name,
           concat_ws(', ', 'user ' || a.usename, nullif(a.application_name, ''), a.state,
                     nullif(left(a.query, 60), '')) AS detail,
           age(a.backend_xmin)::bigint AS age,
           extract(epoch FROM clock_timestamp() - a.xact_start)::double precision AS open_s
    FROM pg_stat_activity AS a
    WHERE a.backend_xmin IS NOT NULL AND a.pid <> pg_backend_pid() AND a.backend_type <> 'autovacuum worker'
    UNION ALL
    SELECT 'prepared', p.gid, concat_ws(', ', 'of ' || p.owner, 'in ' || p.database), age(p.transaction)::bigint,
           extract(epoch FROM clock_timestamp() - p.prepared)::double precision
    FROM pg_prepared_xacts AS p
    UNION ALL
    SELECT 'slot', s.slot_name::text, CASE WHEN s.active THEN 'in use' ELSE 'not in use' END,
           greatest(age(s.xmin), age(s.catalog_xmin))::bigint, NULL
    FROM pg_replication_slots AS s
    WHERE s.xmin IS NOT NULL
) AS held
ORDER BY held.open_s DESC NULLS LAST, held.age DESC
LIMIT 5
