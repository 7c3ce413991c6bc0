-- How some jobs stand, for whoever waits for their results.
-- Parameters: $1 ids uuid[].
-- Rows: id, state, result, last_error of each job that exists; one that is open has no result.
-- Locks: none.
-- Index: open_jobs_pkey, ended_jobs_pkey.
SELECT found.id, found.state, found.result, found.last_error
FROM unnest($1::uuid[]) AS given(id) CROSS JOIN LATERAL (
    SELECT o.id, o.state, NULL::jsonb AS result, NULL::text AS last_error
    FROM :"schema".open_jobs AS o WHERE o.id = given.id
    UNION ALL
    SELECT e.id, e.state, e.result, e.last_error FROM :"schema".ended_jobs AS e WHERE e.id = given.id
) AS found
