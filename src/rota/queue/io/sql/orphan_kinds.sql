-- Finds the kinds with due work, and the passes, that no live server takes.
-- Parameters: $1 live_s float8 (how long ago a live server was seen at most), $2 now timestamptz or null.
-- A person may have set a time that Python does not know, such as 'infinity': the nearest that it does is given.
-- Rows: kind, due_at timestamptz (of the oldest due job, or the pass's next), is_pass boolean; by kind.
-- Locks: none.
-- Index: open_jobs_next: one look for each kind that waits, and one for each of its priorities.
WITH RECURSIVE clock AS MATERIALIZED (
    SELECT coalesce($2::timestamptz, now()) AS now
), taken AS MATERIALIZED (
    SELECT DISTINCT kind.name
    FROM :"schema".servers AS s CROSS JOIN clock CROSS JOIN LATERAL jsonb_object_keys(s.kinds) AS kind(name)
    WHERE s.seen_at >= clock.now - make_interval(secs => $1) AND NOT s.draining
), waiting(kind) AS (
    (SELECT o.kind FROM :"schema".open_jobs AS o
     WHERE o.state = 'queued' AND o.place = 'worker' ORDER BY o.kind LIMIT 1)
    UNION ALL
    SELECT (SELECT o.kind FROM :"schema".open_jobs AS o
            WHERE o.state = 'queued' AND o.place = 'worker' AND o.kind > waiting.kind ORDER BY o.kind LIMIT 1)
    FROM waiting WHERE waiting.kind IS NOT NULL
), orphan AS (
    SELECT waiting.kind, least(greatest(first.run_after, '0001-01-02 00:00+00'), '9999-12-30 00:00+00') AS due_at
    FROM waiting CROSS JOIN clock CROSS JOIN LATERAL (
        WITH RECURSIVE level(priority) AS (
            (SELECT o.priority FROM :"schema".open_jobs AS o
             WHERE o.state = 'queued' AND o.place = 'worker' AND o.kind = waiting.kind
             ORDER BY o.priority DESC LIMIT 1)
            UNION ALL
            SELECT (SELECT o.priority FROM :"schema".open_jobs AS o
                    WHERE o.state = 'queued' AND o.place = 'worker' AND o.kind = waiting.kind
                      AND o.priority < level.priority
                    ORDER BY o.priority DESC LIMIT 1)
            FROM level WHERE level.priority IS NOT NULL
        )
        SELECT min(next.run_after) AS run_after
        FROM level CROSS JOIN LATERAL (
            SELECT o.run_after FROM :"schema".open_jobs AS o
            WHERE o.state = 'queued' AND o.place = 'worker' AND o.kind = waiting.kind
              AND o.priority = level.priority
            ORDER BY o.run_after LIMIT 1
        ) AS next
        WHERE level.priority IS NOT NULL
    ) AS first
    WHERE waiting.kind IS NOT NULL AND NOT EXISTS (SELECT FROM taken WHERE taken.name = waiting.kind)
      AND first.run_after <= clock.now
    UNION ALL
    SELECT p.name, p.due_at FROM :"schema".passes AS p
    WHERE p.removed_at IS NULL AND NOT EXISTS (SELECT FROM taken WHERE taken.name = p.name)
)
SELECT orphan.kind, min(orphan.due_at) AS due_at,
       bool_or(EXISTS (SELECT FROM :"schema".passes AS p WHERE p.name = orphan.kind AND p.removed_at IS NULL)) AS is_pass
FROM orphan
GROUP BY orphan.kind
ORDER BY orphan.kind
