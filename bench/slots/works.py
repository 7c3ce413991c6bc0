"""What is measured: commands as an exec server runs them, and bytes through a command and back."""

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench.machine import Bystanders
from bench.report import NotMeasured, Sample
from bench.slots.wire import Wire, open_wire
from rota.slots.config import read_exec_config
from rota.slots.io.commands import Commands
from rota.slots.io.pipes import Pipes
from rota.slots.messages import Done, Error, Job, Offer, Receipt, Want, Work, encode, from_server
from rota.slots.output import Digest

TRUE: Final = '[services.true]\ncommand = ["/bin/true"]\n'
SLOTS: Final = 2
PARKED: Final = 6
"""Wants of the client at once: enough that a slot never waits for the wire."""
PIECE: Final = bytes(256 * 1024)
HOST: Final = "127.0.0.1"
NGINX: Final = """
{user} daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/error.log;
events {{ }}
http {{
    access_log off; sendfile on;
    client_body_temp_path {folder}/a; proxy_temp_path {folder}/b; fastcgi_temp_path {folder}/c;
    uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
    server {{ listen {host}:{origin}; root {folder}/files; }}
    server {{ listen {host}:{proxy}; location / {{ proxy_pass http://{host}:{origin}; proxy_max_temp_file_size 0; }} }}
}}
"""


async def commands(bystanders: Bystanders, count: int, folder: Path) -> list[Sample]:
    """`/bin/true` so many times, in two slots, from the job to the receipt."""
    waiting: dict[str, asyncio.Future[Receipt]] = {}

    def ended(job_id: str, receipt: Receipt) -> None:
        waiting.pop(job_id).set_result(receipt)

    runner = Commands(read_exec_config(TRUE).services, ended=ended, scratch=folder)

    async def one(job_id: str) -> None:
        future = waiting[job_id] = asyncio.get_running_loop().create_future()
        runner.start(job_id, "true", Work())
        receipt = await future
        if not receipt.ok:
            raise NotMeasured(f"/bin/true did not end well: {receipt}")

    async def slot(number: int, share: int) -> None:
        for turn in range(share):
            await one(f"{number}-{turn}")

    await asyncio.gather(*(slot(number, 20) for number in range(SLOTS)))
    since, begun = bystanders.reading(), time.perf_counter()
    await asyncio.gather(*(slot(number, count // SLOTS) for number in range(SLOTS)))
    rate, others = count / (time.perf_counter() - begun), bystanders.share(since)
    await runner.stop()
    return [Sample("commands.rota", rate, others)]


async def cycles(bystanders: Bystanders, count: int, folder: Path) -> list[Sample]:
    """The same through `rota execserver` and a client's connection: WANT, OFFER, JOB, DONE, with a few wants parked."""
    config, tells = folder / "exec.toml", folder / "address"
    config.write_text(f"[waitgroups.default]\nprocesses = {SLOTS}\n{TRUE}")
    line = [sys.executable, "-m", "rota.cli.main", "execserver", "--config", str(config), "--port", "0"]
    tells.unlink(missing_ok=True)
    server = await asyncio.create_subprocess_exec(*line, "--address-file", str(tells), stdout=subprocess.DEVNULL)
    try:
        while not tells.exists():
            if server.returncode is not None:
                raise NotMeasured("the exec server did not start")
            await asyncio.sleep(0.05)
        host, _, port = tells.read_text().strip().partition("://")[2].rpartition(":")
        with open_wire(host, int(port)) as wire:
            _cycle(wire, 40, "warm")
            since, begun = bystanders.reading(), time.perf_counter()
            _cycle(wire, count, "job")
            rate, others = count / (time.perf_counter() - begun), bystanders.share(since)
    finally:
        if server.returncode is None:
            server.terminate()
        await server.wait()
    return [Sample("cycles.rota", rate, others)]


def _cycle(wire: Wire, count: int, name: str) -> None:
    def want(number: int) -> None:
        if number < count:
            wire.say(encode(Want(f"{name}-{number}", "true")))

    for number in range(PARKED):
        want(number)
    ended = 0
    while ended < count:
        for frame in wire.hear():
            match from_server(frame):
                case Offer(job_id):
                    wire.say(encode(Job(job_id, Work())))
                case Done(job_id, receipt):
                    if not receipt.ok:
                        raise NotMeasured(f"/bin/true did not end well: {receipt}")
                    want(ended + PARKED)
                    ended += 1
                case Error(code, message):
                    raise NotMeasured(f"{code}: {message}")


async def spawns(bystanders: Bystanders, count: int, at_once: int) -> list[Sample]:
    """The bare loop: `/bin/true` by subprocess, so many at once, and nothing else."""
    since, begun = bystanders.reading(), time.perf_counter()
    running: list[subprocess.Popen[bytes]] = []
    for _ in range(count):
        running.append(subprocess.Popen(["/bin/true"]))  # noqa: ASYNC220 - nothing else runs
        if len(running) == at_once:
            running.pop(0).wait()
    for process in running:
        process.wait()
    rate = count / (time.perf_counter() - begun)
    return [Sample(f"commands.bare{at_once}", rate, bystanders.share(since))]


async def pipes(bystanders: Bystanders, count: int, folder: Path) -> list[Sample]:
    """Bytes from this process through `cat` below another one, and back, with length and digest checked."""
    server = Pipes(HOST)
    await server.start()
    host = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.slots.host", str(folder), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert host.stdin is not None
    assert host.stdout is not None
    try:
        for size in (len(PIECE), count):  # the first warms up
            source, sink = server.source(_pieces(size)), server.sink()
            since, begun = bystanders.reading(), time.perf_counter()
            host.stdin.write(encode(Job("job", Work(stdin=source.url(HOST), stdout=sink.url(HOST)))) + b"\n")
            came, digest = 0, Digest()
            async for chunk in sink:
                came += len(chunk)
                digest.update(chunk)
            done = from_server(await host.stdout.readline())
            rate, others = came / (time.perf_counter() - begun), bystanders.share(since)
            if not isinstance(done, Done) or not done.receipt.ok or done.receipt.digest != digest.text:
                raise NotMeasured(f"the stream did not come whole: {done}")
    finally:
        host.stdin.close()
        await host.wait()
        await server.stop()
    return [Sample("pipes.rota", rate / 2**20, others)]


async def curl(bystanders: Bystanders, count: int, folder: Path) -> list[Sample]:
    """The same number of bytes from a file by nginx, through nginx as a proxy, to curl."""
    with _nginx(folder, count) as port:
        line = ["curl", "-sf", "-o", os.devnull, f"http://{HOST}:{port}/file"]
        for _ in range(2):  # the first has the system make the file's pages
            since, begun = bystanders.reading(), time.perf_counter()
            process = await asyncio.create_subprocess_exec(*line)
            if await process.wait():
                raise NotMeasured("curl did not get its file")
            rate = count / (time.perf_counter() - begun)
    return [Sample("pipes.curl", rate / 2**20, bystanders.share(since))]


async def _pieces(count: int) -> AsyncIterator[bytes]:
    for at in range(0, count, len(PIECE)):
        yield PIECE[: count - at]


@contextmanager
def _nginx(folder: Path, count: int) -> Iterator[int]:
    program = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if program is None or shutil.which("curl") is None:
        raise NotMeasured("nginx or curl is not installed")
    (folder / "files").mkdir(exist_ok=True)
    os.truncate(os.open(folder / "files" / "file", os.O_CREAT | os.O_WRONLY), count)
    origin, proxy = _free_port(), _free_port()
    user = "user root;" if os.geteuid() == 0 else ""  # its workers read the folder of this process
    (folder / "nginx.conf").write_text(NGINX.format(folder=folder, user=user, host=HOST, origin=origin, proxy=proxy))
    process = subprocess.Popen([program, "-c", folder / "nginx.conf"])
    try:
        for port in (origin, proxy):
            _wait_for(port, process)
        yield proxy
    finally:
        process.terminate()
        process.wait()


def _free_port() -> int:
    with socket.create_server((HOST, 0)) as made:
        port: int = made.getsockname()[1]
        return port


def _wait_for(port: int, process: "subprocess.Popen[bytes]") -> None:
    for _ in range(500):
        if process.poll() is not None:
            raise NotMeasured("nginx ended at once")
        try:
            socket.create_connection((HOST, port), 1).close()
        except OSError:
            time.sleep(0.01)
        else:
            return
    raise NotMeasured("nginx did not answer")
