"""graphile-worker as its documentation sets it for speed: local queue of 500, ends written in batches."""

NODE = "graphile_worker"
OPTIONS = {"localQueue": 500, "completeJobBatchDelay": 0}
PENDING = "SELECT EXISTS (SELECT FROM graphile_worker._private_jobs WHERE run_at <= now())"
