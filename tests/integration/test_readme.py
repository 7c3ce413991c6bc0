"""What the pages say is so: their programs run as they stand, and their SQL.

A Python block whose first line is `# name.py` is a program: it is written to that file. In the README and in the first
guide the shell blocks run it, line by line and in the order of the page; in the other guides it is run by itself, and
a text block right below it is what it prints. What needs no database is in `tests/tidy/test_pages.py`.
"""

import asyncio
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import asyncpg
import pytest

from rota.runners.io.retention import Retention
from rota.runners.io.survey import read_runners
from rota.runners.io.usage import UsageBook
from rota.settings import Settings
from tests.integration.gateways import Engine, connected, gateway, pair
from tests.pages import GUIDES, PAGES, ROOT, Block, blocks_of, name_of
from tests.postgres_servers import Psql

WALKED: Final = frozenset({"README.md", "docs/guide/first-job.md"})
"""The pages whose shell blocks run what stands above them."""

ELSEWHERE: Final = frozenset(
    f"docs/guide/{name}.md"
    for name in (
        "argv-gate", "django", "exec-calls", "exec-servers", "load-balancers", "object-stores", "runner-machines",
        "runners", "sizing-slots",
    )
)  # fmt: skip
"""Guides that are tested elsewhere: one needs a project around it (`test_django.py`), some exec servers
(`test_exec_jobs.py`, `test_exec_guide.py`, `test_balancers.py`), one shows a command
(`tests/runners/test_check_argv.py`), two need a gateway (`test_runner_command.py`,
`test_runners_whole.py`)."""

COMMAND_S_MAX: Final = 60.0
SETTLE_S_MAX: Final = 60.0


@dataclass
class Place:
    """A folder with programs and a database, as a reader has them, and the workers that were started there."""

    folder: Path
    dsn: str
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    said: str = ""

    @property
    def environ(self) -> dict[str, str]:
        """The reader's environment: this interpreter's commands first, and no setting but the database."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("ROTA_", "PG", "SSL_CERT_"))}
        kept["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", os.defpath)])
        return {**kept, "ROTA_DSN": self.dsn, "PYTHONDONTWRITEBYTECODE": "1"}

    def run(self, line: str) -> str:
        """Runs one command, which has to succeed, and gives what it prints."""
        done = subprocess.run(
            shlex.split(line), cwd=self.folder, env=self.environ, capture_output=True, text=True, timeout=COMMAND_S_MAX,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        return done.stdout

    def start_worker(self, line: str) -> None:
        """Starts a worker beside what follows."""
        log = (self.folder / f"worker{len(self.workers)}.log").open("wb")
        with log:
            self.workers.append(
                subprocess.Popen(shlex.split(line), cwd=self.folder, env=self.environ, stdout=log, stderr=log)
            )

    def settle(self) -> None:
        """Waits until no job is open."""
        give_up_at = time.monotonic() + SETTLE_S_MAX
        while self.ask("SELECT count(*) FROM rota.jobs WHERE state IN ('queued', 'leased')"):
            assert time.monotonic() < give_up_at, f"jobs do not end\n{self.logs()}"
            time.sleep(0.1)

    def ask(self, question: str) -> object:
        """The one value that a statement gives."""

        async def ask() -> object:
            connection = await asyncpg.connect(self.dsn)
            try:
                return await connection.fetchval(question)
            finally:
                await connection.close()

        return asyncio.run(ask())

    def logs(self) -> str:
        """What the workers wrote."""
        return "".join(log.read_text() for log in sorted(self.folder.glob("worker*.log")))

    def stop(self) -> None:
        """Stops the workers, which have to end well."""
        for worker in self.workers:
            worker.send_signal(signal.SIGTERM)
        try:
            statuses = [worker.wait(COMMAND_S_MAX) for worker in self.workers]
        finally:
            for worker in self.workers:
                worker.kill()
        assert not any(statuses), f"{statuses}\n{self.logs()}"

    def walk(self, blocks: list[Block]) -> list[str]:
        """Does what a reader does who follows a page: writes the files, runs the commands and the SQL.

        Returns: the commands that were met.
        """
        met = []
        for block in blocks:
            if block.program is not None:
                (self.folder / block.program).write_text(block.text)
            elif block.language == "sql":
                self.ask(block.text)
                if self.workers:
                    self.settle()
            elif block.language == "sh":
                for line in filter(None, (line.partition("#")[0].strip() for line in block.text.splitlines())):
                    met.append(line)
                    if line.startswith("export "):
                        assert line.startswith("export ROTA_DSN=postgresql://"), line
                    elif line.startswith("rota worker "):
                        self.start_worker(line)
                        self.settle()
                    else:
                        self.said += self.run(line)
        return met


@contextmanager
def place(folder: Path, dsn: str) -> Iterator[Place]:
    """A reader's place; its workers are stopped at the end."""
    here = Place(folder, dsn)
    try:
        yield here
    except BaseException:
        for worker in here.workers:
            worker.kill()
            worker.wait()
        raise
    else:
        here.stop()


# Programs


def test_the_readme_does_what_it_says(tmp_path: Path, dsn: str) -> None:
    blocks = blocks_of(ROOT / "README.md", heading="## A program")
    assert [block.program or block.language for block in blocks] == ["shop.py", "sh", "sql"]
    with place(tmp_path, dsn) as here:
        met = here.walk(blocks)
        assert met[1:] == ["rota migrate up", "python shop.py", "rota worker shop:app", "rota jobs list"]
        assert re.search(r"thumbnail +done +1/5 .*took", here.said)
        assert here.ask("SELECT count(*) FROM videos") == 1
        assert here.ask("SELECT count(*) FROM rota.jobs WHERE kind = 'thumbnail' AND state = 'done'") == 2
        wanted = '{"path": "a.mp4", "width": 320}'
        assert here.ask(f"SELECT bool_and(result = '{wanted}') FROM rota.jobs")


def test_the_first_guide_does_what_it_says(tmp_path: Path, dsn: str) -> None:
    with place(tmp_path, dsn) as here:
        here.walk(blocks_of(ROOT / "docs/guide/first-job.md"))
        assert re.search(r"greet +failed +1/3 .*The payload does not fit .*`name`", here.said)
        assert re.search(r"flaky +done +2/2 .*took", here.said)
        reason = here.ask("SELECT last_error FROM rota.jobs WHERE kind = 'flaky'")
        assert f"`{reason}`" in (ROOT / "docs/guide/first-job.md").read_text()
        assert here.ask("SELECT count(*) FROM rota.jobs WHERE state = 'done'") == 3


@pytest.mark.parametrize("page", [page for page in GUIDES if name_of(page) not in WALKED | ELSEWHERE], ids=name_of)
def test_the_programs_of_a_guide_run(page: Path, tmp_path: Path, migrated_dsn: str) -> None:
    blocks = blocks_of(page)
    programs = [block for block in blocks if block.program is not None]
    assert programs
    with place(tmp_path, migrated_dsn) as here:
        for block, below in zip(blocks, [*blocks[1:], None], strict=True):
            if block.program is None:
                continue
            (tmp_path / block.program).write_text(block.text)
            printed = here.run(f"python {block.program}")
            if below is not None and below.language == "text":
                assert printed == below.text, f"{name_of(page)}:{block.line}"


def test_the_outcomes_in_the_guide_become_what_it_says(tmp_path: Path, migrated_dsn: str) -> None:
    with place(tmp_path, migrated_dsn) as here:
        for block in blocks_of(ROOT / "docs/guide/handlers.md"):
            if block.program is not None:
                (tmp_path / block.program).write_text(block.text)
        here.run("python try_films.py")
        ended = here.ask(
            "SELECT string_agg(concat_ws(' ', kind, state, tries, coalesce(last_error, result::text)), ', ' "
            "ORDER BY kind, state) FROM rota.jobs"
        )
    assert ended == (
        "checksum done 1 3, index done 1 3, publish cancelled 2 withdrawn, "
        'publish failed 1 a temporary file is never published, tick done 1, transcode done 1 {"parts": 3}'
    )


@pytest.fixture
def granted(migrated_dsn: str, psql: Psql) -> Iterator[Callable[[str], str]]:
    """Makes the page's roles in a database, and gives the address of it for each; roles belong to the whole server."""
    roles = ("rota_worker", "rota_enqueuer", "rota_reader", "rota_gateway")
    (grants,) = [block for block in blocks_of(ROOT / "docs/OPERATING.md") if "CREATE ROLE" in block.text]
    psql(migrated_dsn, grants.text)
    try:
        yield lambda role: migrated_dsn.replace("//rota@", f"//{role}@")
    finally:
        for role in roles:
            psql(migrated_dsn, f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_the_grants_are_enough(granted: Callable[[str], str], tmp_path: Path, psql: Psql) -> None:
    for scope in ("open", "queued", "forever", "replace", "merge", "debounce"):
        job = f"""'greet', '{{"name": "Ada"}}', dedupe_key => 'ada', dedupe_scope => '{scope}'"""
        psql(granted("rota_enqueuer"), f"SELECT rota.enqueue({job})")
    with place(tmp_path, granted("rota_worker")) as worker:
        (greet, *_) = [block for block in blocks_of(ROOT / "docs/guide/first-job.md") if block.program]
        (tmp_path / "greet.py").write_text(greet.text)
        worker.start_worker("rota worker greet:app")
        worker.settle()
        reader = Place(tmp_path, granted("rota_reader"))
        listed = reader.run("rota jobs list --json")
        shown = reader.run(f"rota jobs show --logs --json {json.loads(listed)['jobs'][0]['id']}")
        for line in ("rota top --once", "rota admin jobs", "rota jobs why --key ada"):
            assert reader.run(line)
    assert listed.count('"state": "done"') == 3
    assert '"tries_kept": []' in shown and '"logs": []' in shown


async def test_the_gateways_grants_are_enough(granted: Callable[[str], str]) -> None:
    async with gateway(granted("rota_gateway"), gateway_org_slots=5) as replica, Engine(replica) as engine:
        device = await pair(replica, engine)
        devices, exchange = replica.exchange.devices, replica.exchange
        credential = await devices.new_credential()
        async with connected(replica, device.auth()) as runner:
            job = await engine.create()
            assign = await runner.take()
            running = await engine.until(job, "Running")
            assert (await engine.ask("POST", f"/internal/v1/jobs/{job['jobId']}/staging"))[0] == 200
            op = asyncio.create_task(engine.op(running["sessionId"], "stat", {"path": "a"}))
            await runner.answer(assign, {"exists": True, "bytes": 1})
            assert (await op)[0] == 200
            held = [{"jobId": assign["jobId"], "leaseEpoch": assign["payload"]["leaseEpoch"]}]
            await runner.say("heartbeat", {"freeSlots": 0, "running": held})
            await runner.hear("heartbeat")
            await runner.of_job("progress", assign, stage="cutting")
            await runner.of_job("complete", assign, outcome="succeeded")
            await engine.until(job, "Succeeded")
            refused = await engine.create()
            assign = await runner.take()
            await engine.until(refused, "Running")
            assert (await engine.ask("POST", f"/internal/v1/jobs/{refused['jobId']}/verdict", json={}))[0] == 200
            waits = await engine.create(execution="e")
            assert (await engine.ask("DELETE", "/internal/v1/executions/e"))[1] == {"jobs": 1}
            assert (await engine.job(waits))["state"] == "Cancelled"
        pool = {"kind": "pool", "credential": credential, "workerName": "vm-1"}
        async with connected(replica, pool) as runner:
            job = await engine.create(target="CloudPool")
            await runner.say("ready", {"freeSlots": 1})
            await runner.of_job("reject", await runner.hear("assign"), reason="busy")
            await engine.until(job, "Queued")
            await exchange.look_for_barred()
        await devices.rename(device.device_id, "studio")
        await devices.rotate_key(device.device_id, b"n" * 32)
        await devices.disable_org("acme")
        assert await devices.enable_org("acme")
        await devices.revoke(device.device_id)
        await exchange.store.reap()
        await UsageBook(exchange.store.database).record()
        retention = Retention(exchange.store.database, keep_s=0, keep_failed_s=0, audit_s=0)
        await retention.remove()
        settings = Settings(dsn=granted("rota_gateway"))
        assert (await read_runners(exchange.store.database, settings)).waiting == 1
        assert (await engine.ask("GET", "/internal/v1/scaling"))[0] == 200


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_sql_runs(page: Path, migrated_dsn: str, psql: Psql) -> None:
    for block in blocks_of(page):
        if block.language == "sql":
            psql(migrated_dsn, f"BEGIN; CREATE TABLE IF NOT EXISTS videos (path text);\n{block.text}\n; ROLLBACK")
