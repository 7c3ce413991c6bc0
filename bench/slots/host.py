"""The exec server's side of the pipes, in a process of its own: a JOB a line comes in, a DONE a line goes out."""

import asyncio
import sys
from pathlib import Path
from typing import Final

import uvloop

from rota.slots.config import read_exec_config
from rota.slots.io.commands import Commands
from rota.slots.messages import Done, Job, Receipt, encode, from_client

CONFIG: Final = '[services.cat]\ncommand = ["/bin/cat"]\n'


def say(job_id: str, receipt: Receipt) -> None:
    """Tells of a command that has ended."""
    print(encode(Done(job_id, receipt)).decode(), flush=True)


async def main(scratch: Path) -> None:
    """Runs what it is told until its stdin ends."""
    commands = Commands(read_exec_config(CONFIG).services, ended=say, scratch=scratch)
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := await lines.readline():
        job = from_client(line)
        assert isinstance(job, Job)
        commands.start(job.job_id, "cat", job.job)
    await commands.stop()


if __name__ == "__main__":
    uvloop.run(main(Path(sys.argv[1])))
