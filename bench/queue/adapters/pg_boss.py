"""pg-boss on Node: batches of 1,000, two at once, woken by NOTIFY, finished jobs kept for seven days."""

from typing import Any

NODE = "pg_boss"
OPTIONS: dict[str, Any] = {}
PENDING = "SELECT EXISTS (SELECT FROM pgboss.job WHERE name = 'noop' AND state < 'completed' AND start_after <= now())"
DONE = "SELECT count(*) FROM pgboss.job WHERE name = 'noop' AND state = 'completed'"
HISTORY = {
    "finished": """
        INSERT INTO pgboss.job (name, data, state, policy, started_on, completed_on)
        SELECT 'noop', '{"number": 1, "sent_at": 0}', 'completed', 'standard', now(), now()
        FROM generate_series(1, $1::integer)""",
    "future": """
        INSERT INTO pgboss.job (name, data, policy, start_after)
        SELECT 'noop', '{"number": 1, "sent_at": 0}', 'standard', now() + interval '1 day'
        FROM generate_series(1, $1::integer)""",
}
