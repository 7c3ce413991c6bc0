-- Lists the jobs of one kind with their payloads, for tests of programs.
-- Parameters: $1 kind text, $2 how many at most integer.
-- Rows: id, kind, tenant, priority, state, payload as text, dedupe_key, run_after, created_at; oldest first.
-- Locks: none.
-- Index: none that is sure to help; a test's database is small.
SELECT j.id, j.kind, j.tenant, j.priority, j.state, j.payload::text AS payload, j.dedupe_key, j.run_after, j.created_at
FROM :"schema".jobs AS j
WHERE j.kind = CAST($1 AS text)
ORDER BY j.id
LIMIT CAST($2 AS integer)
