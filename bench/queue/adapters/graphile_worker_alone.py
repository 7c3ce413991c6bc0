"""graphile-worker with each end written by itself."""

NODE = "graphile_worker"
OPTIONS = {"localQueue": 2000, "completeJobBatchDelay": -1}
PENDING = "SELECT EXISTS (SELECT FROM graphile_worker._private_jobs WHERE run_at <= now())"
