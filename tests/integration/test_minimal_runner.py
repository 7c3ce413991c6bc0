"""A runner in another language, written from the protocol page alone: a Node script that knows none of our code."""

import asyncio
import re

from tests.integration.minimal_runner import SCRIPT, minimal_runner
from tests.integration.stand_in_gateway import WAIT_S, stand_in

JOB = "0197c0de-0000-7000-8000-000000000001"


def test_the_script_uses_nothing_but_node() -> None:
    imported = re.findall(r"from \"([^\"]+)\"", SCRIPT.read_text())
    assert imported == ["node:crypto"]


async def test_it_pairs_connects_takes_a_job_and_answers_ops() -> None:
    async with stand_in() as gateway:
        gateway.codes["ABCD-EFGH-JKMN"] = "org-1"
        gateway.objects["a.mp4"] = b"not really a film"
        base = f"http://127.0.0.1:{gateway.port}"
        async with minimal_runner(base, "ABCD-EFGH-JKMN") as process:
            connection = await gateway.connected()
            await connection.welcome()
            assert (await connection.expect("ready"))["payload"] == {"freeSlots": 1}
            assert (await connection.assign(JOB))["type"] == "accept"
            args = {"url": f"{base}/objects/a.mp4", "path": "in/a.mp4", "maxBytes": 100}
            staged = await connection.op(JOB, "stage", args, op_id="op-1")
            assert (staged["ok"], staged["result"]["bytes"]) == (True, 17)
            assert await connection.op(JOB, "stage", args | {"url": "gone"}, op_id="op-1") == staged
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
    async with stand_in() as gateway, minimal_runner(f"http://127.0.0.1:{gateway.port}", "ABCD-EFGH-ZZZZ") as process:
        async with asyncio.timeout(WAIT_S):
            said, _ = await process.communicate()
        assert (process.returncode, said.decode().strip()) == (1, "not paired: 404")
