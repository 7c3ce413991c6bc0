-- Begins a batch, in the transaction that adds its jobs.
-- Parameters: $1 id text (a uuid), $2 jobs integer (how many), $3 kind text of the follow-up or null for none,
--   $4 payload jsonb, $5 priority integer, $6 tenant text, $7 max_tries integer and $8 trace text of the follow-up,
--   $9 now timestamptz or null.
-- Rows: id.
-- Locks: the new row.
-- Index: batches_pkey.
INSERT INTO :"schema".batches AS b
    (id, jobs, then_kind, then_payload, then_priority, then_tenant, then_max_tries, then_trace, created_at)
VALUES (CAST(CAST($1 AS text) AS uuid), CAST($2 AS integer), CAST($3 AS text), CAST(CAST($4 AS text) AS jsonb),
        CAST($5 AS integer), CAST($6 AS text), CAST($7 AS integer), CAST($8 AS text),
        coalesce(CAST($9 AS timestamptz), now()))
RETURNING b.id
