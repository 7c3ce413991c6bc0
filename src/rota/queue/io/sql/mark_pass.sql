-- Notes whether live code has a pass; one that is removed keeps its row, and with it its raster.
-- Parameters: $1 name text, $2 missing boolean, $3 removed boolean, $4 now timestamptz or null.
-- Rows: none.
-- Locks: the row of the pass.
-- Index: passes_pkey.
UPDATE :"schema".passes AS p
SET missing_since = CASE WHEN $2 THEN coalesce(p.missing_since, $4::timestamptz, now()) END,
    removed_at = CASE WHEN $3 THEN coalesce(p.removed_at, $4::timestamptz, now()) END
WHERE p.name = $1
