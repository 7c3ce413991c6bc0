"""Programs of Rota's with everything turned up that could tell a secret: every logger at DEBUG, asyncio's debug mode,
crash dumps. `cli WORDS…` is the command line; `engine` is a worker whose handler uses a session in each bad way.

The engine's store adds a canary to the query of each URL, as a signature is one.
"""

import asyncio
import faulthandler
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Any

import rota
from rota.objects.io.folder import FolderStore
from rota.runners import ops
from rota.runners.io import engine_session
from rota.runners.io.media import MediaSession
from rota.settings import load

CANARY = "S1gnatureCanary7f3a"
SILENT_S = 1
"""How long a transfer may take that waits for a silent store."""


class Way:
    """In which way the URLs are wrong now."""

    now = "good"

    @classmethod
    def go(cls, way: str) -> None:
        cls.now = way
        engine_session.TRANSFER_S = SILENT_S if way == "silent" else 1800  # type: ignore[misc]


def turn_up() -> None:
    """Lets every library say all it can, past whatever Rota sets up for itself."""
    logging.basicConfig(level=logging.DEBUG, stream=sys.stderr, format="%(name)s %(levelname)s %(message)s")
    logging.captureWarnings(capture=True)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR2, all_threads=True)


def spoil(url: str) -> str:
    """A URL in the way of the moment, with the canary in its query. What is signed has no room for one: there the
    signature is written down, for whoever looks for it."""
    path, _, query = url.partition("?")
    place = path.partition("://")[2].partition("/")[2]
    match Way.now:
        case "refused":
            return f"{path}?{query.replace('signature=', 'signature=x')}&canary={CANARY}"
        case "silent":
            return f"http://127.0.0.1:{os.environ['SILENT_PORT']}/{place}?canary={CANARY}"
        case "tls":
            return f"{url.replace('http:', 'https:')}&canary={CANARY}"
        case _:
            with Path(os.environ["SIGNATURES"]).open("a") as written:
                written.write(query.partition("signature=")[2] + "\n")
            return url


def cli() -> None:
    """The command line; a `stage` to the path `break` is a fault of the runner's own, with the URL in its words."""
    from rota.cli.main import main

    stage = MediaSession._stage

    async def breaking(self: MediaSession, args: ops.StageArgs, progress: Any) -> Any:
        if args.path == "break":
            raise RuntimeError(f"cannot get {args.url}")
        return await stage(self, args, progress)

    MediaSession._stage = breaking  # type: ignore[assignment, method-assign]
    sys.argv = ["rota", *sys.argv[2:]]
    main()


async def engine() -> None:
    """Serves jobs `work` until it is told to stop."""
    minted = FolderStore._minted
    FolderStore._minted = lambda *args: spoil(minted(*args))  # type: ignore[method-assign]
    engine_session.TRANSFER_TRIES = 1  # type: ignore[misc]
    app = rota.App(settings=load())

    @app.job("work", lease_s=60, max_tries=1)
    async def work(ctx: rota.Context, job: dict[str, str]) -> str:
        Way.go("good")
        async with ctx.session("video.compile", target=job["target"]) as session:
            await session.stage("in.txt", source="in.txt")
            Way.go(job["way"])
            if Way.now == "crash":
                raise RuntimeError(f"the handler of {session!r} broke in its own code")
            try:
                await session.stage("break" if Way.now == "break" else "again.txt", source="in.txt")
            except rota.RotaError as error:
                failed = error
            else:
                failed = None
            published = await session.publish("in.txt", to=f"out/{ctx.job.id}.txt")
            if failed is not None:
                raise failed
            return published.key

    async with app:
        worker = app.worker()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: worker.stop(now=True))
        await worker.run()


if __name__ == "__main__":
    turn_up()
    if sys.argv[1] == "cli":
        cli()
    else:
        asyncio.run(engine(), debug=True)
