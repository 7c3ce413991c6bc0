"""A runner in another language, written from the protocol page alone: a Node script that knows none of our code."""

import asyncio
import re
import shutil
import subprocess
from pathlib import Path

from tests.integration.stand_in_gateway import WAIT_S, StandIn, stand_in
from tests.postgres_servers import unavailable

SCRIPT = Path(__file__).with_name("minimal_runner.mjs")
JOB = "0197c0de-0000-7000-8000-000000000001"


def node() -> str:
    """The program, if it has websockets."""
    found = shutil.which("node")
    version = found and subprocess.run([found, "--version"], capture_output=True, text=True, check=True).stdout
    if not found or not version or int(re.findall(r"\d+", version)[0]) < 20:
        unavailable("node", f"node 20 or later is missing (found {version or 'none'})")
    return str(found)


def test_the_script_uses_nothing_but_node() -> None:
    imported = re.findall(r"from \"([^\"]+)\"", SCRIPT.read_text())
    assert imported == ["node:crypto"]


async def start(gateway: StandIn, code: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        node(), "--no-warnings", "--experimental-websocket", SCRIPT, f"http://127.0.0.1:{gateway.port}", code,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip


async def test_it_pairs_connects_takes_a_job_and_answers_ops() -> None:
    async with stand_in() as gateway:
        gateway.codes["ABCD-EFGH-JKMN"] = "org-1"
        gateway.objects["a.mp4"] = b"not really a film"
        process = await start(gateway, "ABCD-EFGH-JKMN")
        connection = await gateway.connected()
        await connection.welcome()
        assert (await connection.expect("ready"))["payload"] == {"freeSlots": 1}
        assert (await connection.assign(JOB))["type"] == "accept"
        url = f"http://127.0.0.1:{gateway.port}/objects/a.mp4"
        staged = await connection.op(JOB, "stage", {"url": url, "path": "in/a.mp4", "maxBytes": 100}, op_id="op-1")
        assert (staged["ok"], staged["result"]["bytes"]) == (True, 17)
        assert await connection.op(JOB, "stage", {"url": "gone", "path": "x", "maxBytes": 1}, op_id="op-1") == staged
        stat = await connection.op(JOB, "stat", {"path": "in/a.mp4"})
        assert stat["result"] == {"exists": True, "bytes": 17}
        unknown = await connection.op(JOB, "render", {})
        assert unknown["error"]["code"] == "unsupported_op"
        assert (await connection.op(JOB, "close", {}))["ok"]
        assert (await connection.expect("complete"))["payload"]["outcome"] == "succeeded"
        await connection.expect("bye")
        async with asyncio.timeout(WAIT_S):
            said, _ = await process.communicate()
        assert (process.returncode, said.decode().strip()) == (0, "closed 1000")


async def test_without_a_good_code_it_is_not_paired() -> None:
    async with stand_in() as gateway:
        process = await start(gateway, "ABCD-EFGH-ZZZZ")
        async with asyncio.timeout(WAIT_S):
            said, _ = await process.communicate()
        assert (process.returncode, said.decode().strip()) == (1, "not paired: 404")
