"""graphile-worker on Node at the setting that drains fastest here: local queue of 2,000, ends written in batches.

Finished jobs are deleted, so it keeps no history.
"""

NODE = "graphile_worker"
OPTIONS = {"localQueue": 2000, "completeJobBatchDelay": 0}
PENDING = "SELECT EXISTS (SELECT FROM graphile_worker._private_jobs WHERE run_at <= now())"
