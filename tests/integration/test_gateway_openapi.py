"""The served OpenAPI document against the gateway that serves it: requests that fit it and requests that do not.

`schemathesis` makes them, each operation alone and in chains, and looks at what comes back: no 5xx that is not told of,
answers as in the document, what is wrong refused and what is right taken. The same requests come in each run.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from rota.runners import api
from rota.runners.io import device_api
from tests.integration.gateways import TOKEN, WAIT_S, Engine, Runner, connected, gateway, pair

EXAMPLES = 5
"""Requests of each operation and phase, beside those at the borders of what the document allows."""
OFF = "use_after_free"
"""To delete a job is to cancel it, and one that was cancelled can be read: the protocol says so."""

CONFIG = """
[generation]
# PostgreSQL stores none, and JSON Schema cannot say so of all that is within a spec.
allow-x00 = false

[[operations]]
include-path = "/internal/v1/sessions/{{id}}/ops"
parameters = {{ "path.id" = "{session}" }}

[[operations]]
include-path = "/internal/v1/jobs/{{id}}/verdict"
parameters = {{ "path.id" = "{judged}" }}
"""


async def beats(runner: Runner, assigns: dict[str, dict[str, Any]]) -> None:
    """It lives, and so do its jobs, however long the checks take."""
    while True:
        held = [{"jobId": job_id, "leaseEpoch": one["payload"]["leaseEpoch"]} for job_id, one in assigns.items()]
        await runner.say("heartbeat", {"freeSlots": 0, "running": held})
        await asyncio.sleep(5)


async def answers(runner: Runner, assigns: dict[str, dict[str, Any]]) -> None:
    """A runner that refuses each op that it is asked for."""
    while True:
        request = json.loads(await runner.socket.recv())
        if request["type"] != "op.request":
            continue
        error = {"code": "unsupported_op", "message": "none", "retryable": False}
        op_id = request["payload"]["opId"]
        assign = assigns[request["jobId"]]
        await runner.of_job("op.response", assign, request["sessionId"], opId=op_id, ok=False, error=error)


async def test_the_document_and_the_gateway_are_of_one_mind(
    migrated_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "WAIT_S_MAX", 0)  # whoever waits for a job that nobody does would wait for a minute
    monkeypatch.setattr(device_api, "PAIRS_PER_S", 1e6)
    monkeypatch.setattr(device_api, "ROTATIONS_PER_S", 1e6)
    async with gateway(migrated_dsn) as replica, Engine(replica) as engine:
        device = await pair(replica, engine)
        async with connected(replica, device.auth()) as runner:
            session, judged = await engine.create(), await engine.create()
            await runner.say("ready", {"freeSlots": 2})
            assigns = {assign["jobId"]: assign for assign in [await runner.accept(), await runner.accept()]}
            running = await engine.until(session, "Running")
            await engine.until(judged, "Running")
            config = tmp_path / "schemathesis.toml"
            config.write_text(CONFIG.format(session=running["sessionId"], judged=judged["jobId"]))
            living = [asyncio.create_task(work(runner, assigns)) for work in (beats, answers)]
            checking = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "schemathesis.cli", "--config-file", str(config), "run",
                engine.base + "/openapi.json", "--header", f"Authorization: Bearer {TOKEN}", "--checks", "all",
                "--exclude-checks", OFF, "--max-examples", str(EXAMPLES), "--generation-deterministic", "--no-color",
                stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, cwd=tmp_path,
            )  # fmt: skip
            try:
                said, _ = await asyncio.wait_for(checking.communicate(), 8 * WAIT_S)
            finally:
                if checking.returncode is None:
                    checking.kill()
                    await checking.wait()
                for task in living:
                    task.cancel()
                await asyncio.wait(living)
            report = said.decode()
            assert checking.returncode == 0, report
            assert "Tested: 13" in report and "Missing test data" not in report, report
