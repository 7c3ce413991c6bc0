-- Says how long the ended jobs of a program's kinds stay, where it is another time than the settings say, and reads
-- what all programs have said. Writes only what has changed.
-- Parameters: $1 kinds text[] (all of the program), $2 keep_s float8[] and $3 keep_failed_s float8[] (null: as the
--   settings say).
-- Rows: kind, keep_s, keep_failed_s of each kind with a time of its own, in the order of the kinds.
-- Locks: the rows that change, in the order of the kinds.
-- Index: retention_pkey.
WITH said AS MATERIALIZED (
    SELECT s.kind, s.keep_s, s.keep_failed_s
    FROM unnest($1::text[], $2::double precision[], $3::double precision[]) AS s(kind, keep_s, keep_failed_s)
), gone AS (
    DELETE FROM :"schema".retention AS r USING said
    WHERE r.kind = said.kind AND said.keep_s IS NULL AND said.keep_failed_s IS NULL
), kept AS (
    INSERT INTO :"schema".retention AS r (kind, keep_s, keep_failed_s)
    SELECT said.kind, said.keep_s, said.keep_failed_s
    FROM said LEFT JOIN :"schema".retention AS old ON old.kind = said.kind
    WHERE (said.keep_s IS NOT NULL OR said.keep_failed_s IS NOT NULL)
      AND (old.keep_s, old.keep_failed_s) IS DISTINCT FROM (said.keep_s, said.keep_failed_s)
    ORDER BY said.kind
    ON CONFLICT (kind) DO UPDATE SET keep_s = excluded.keep_s, keep_failed_s = excluded.keep_failed_s
)
SELECT kind, keep_s, keep_failed_s FROM said WHERE keep_s IS NOT NULL OR keep_failed_s IS NOT NULL
UNION ALL
SELECT r.kind, r.keep_s, r.keep_failed_s FROM :"schema".retention AS r WHERE r.kind <> ALL ($1)
ORDER BY kind
