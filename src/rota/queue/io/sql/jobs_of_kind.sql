-- Lists the jobs of one kind with their payloads, for tests of programs.
-- Parameters: $1 kind text, $2 how many at most integer.
-- A person may have set a time that Python does not know, such as 'infinity': the nearest that it does is given.
-- Rows: id, kind, tenant, priority, state, payload as text, dedupe_key, run_after, created_at; oldest first.
-- Locks: none.
-- Index: none that is sure to help; a test's database is small.
SELECT j.id, j.kind, j.tenant, j.priority, j.state, j.payload::text AS payload, j.dedupe_key,
       least(greatest(j.run_after, '0001-01-02 00:00+00'), '9999-12-30 00:00+00') AS run_after,
       least(greatest(j.created_at, '0001-01-02 00:00+00'), '9999-12-30 00:00+00') AS created_at
FROM :"schema".jobs AS j
WHERE j.kind = CAST($1 AS text)
ORDER BY j.id
LIMIT CAST($2 AS integer)
