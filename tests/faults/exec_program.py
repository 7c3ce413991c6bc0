"""Commands in a process of its own that a test may kill: a job a line comes in, a receipt a line goes out.

Its arguments are the scratch folder and the state folder.
"""

import asyncio
import sys
from pathlib import Path

import msgspec

from rota.slots.io.commands import Commands
from rota.slots.messages import Done, Job, Receipt, from_client
from tests.integration.exec_bench import SERVICES, read_exec_config


def say(job_id: str, receipt: Receipt) -> None:
    print(msgspec.json.encode(Done(job_id, receipt)).decode(), flush=True)


async def main(scratch: Path, state: Path) -> None:
    commands = Commands(read_exec_config(SERVICES).services, ended=say, scratch=scratch, state=state)
    commands.open()
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := await lines.readline():
        job = from_client(line)
        assert isinstance(job, Job)
        commands.start(job.job_id, "sh", job.job)
    await commands.stop()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2])))
