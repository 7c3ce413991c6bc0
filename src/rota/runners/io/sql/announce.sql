-- Tells all replicas which runners are connected at one of them. The order of a hello that was found good just now is
-- the number of this transaction: a later one has a higher number, whatever the replica.
-- Parameters: $1 runner ids text[], $2 orders bigint[], of each null: just now; $3 gateway instance text.
-- Rows: place: the order of each, in the order of the parameters.
-- Locks: none.
-- Index: none.
WITH given AS MATERIALIZED (
    SELECT g.row, g.runner_id, coalesce(g.place, pg_current_xact_id()::text::bigint) AS place
    FROM unnest($1::text[], $2::bigint[]) WITH ORDINALITY AS g(runner_id, place, row)
)
SELECT given.place, pg_notify(:'schema' || '_runners', 'connected:' || json_build_array(
    given.runner_id, $3::text, given.place))::text AS told
FROM given ORDER BY given.row
