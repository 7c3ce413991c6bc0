-- Reads the worker processes, for people.
-- Parameters: $1 live_s float8 (how long ago a live one was seen at most), $2 now timestamptz or null.
-- Rows: the columns of servers, and live boolean; by host, start and holder.
-- Locks: none.
-- Index: none; the table holds one row for each process.
SELECT s.holder, s.host, s.pid, s.version, s.role, s.settings_digest, s.kinds, s.running, s.passes, s.draining, s.limits, s.facts,
       s.started_at, s.seen_at, s.seen_at >= coalesce($2::timestamptz, now()) - make_interval(secs => $1) AS live
FROM :"schema".servers AS s
ORDER BY s.host, s.started_at, s.holder
