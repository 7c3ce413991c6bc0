"""Whom the workloads are done with: one file each, and nothing else knows their names but the plan in `main.py`.

An adapter runs in processes of its own (`host.py`) and defines what its workloads need of this:

    setup(dsn)                       installs its schema into an empty database
    open(dsn), close(client)         a producer's connection
    enqueue_one(client, number, sent_at)   adds one job and commits; `sent_at` goes into the payload
    bulks                            a dict: name of a way to add many jobs -> prepare(client, count), which gives the
                                     coroutine function that is timed; the jobs are committed when it returns
    worker(dsn, meter)               works until SIGTERM; calls `meter.started()` when a job starts, and
                                     `meter.waited(number, seconds)` for a job whose payload says when it was sent
    PENDING                          SQL: whether a due job is not durably finished yet; must not read whole tables
    DONE                             SQL: how many jobs are finished; left out where finished jobs are not kept
    HISTORY                          a dict: name -> SQL that adds $1 rows of that sort; left out where there is none

Of a peer on Node only the SQL stands here, with `NODE`, the file under `node/` that has the rest, and `OPTIONS`. A
peer's own package is imported in functions only, because this program reads the SQL where it is not installed.
"""
