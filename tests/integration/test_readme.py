"""What the pages say is so: their programs run as they stand, and their tables are those of the code.

A Python block whose first line is `# name.py` is a program: it is written to that file. In the README and in the first
guide the shell blocks run it, line by line and in the order of the page; in the other guides it is run by itself, and
a text block right below it is what it prints. Every other Python block has to compile, and every SQL block to run.
"""

import ast
import asyncio
import inspect
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
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Final

import asyncpg
import pytest
from typer.testing import CliRunner

import rota
from rota.cli import main
from rota.queue.job import NEXT_STATES
from rota.runners.io.retention import Retention
from rota.runners.io.survey import read_runners
from rota.runners.io.usage import UsageBook
from rota.settings import CHECKS, Settings
from tests.integration.gateways import Engine, connected, gateway, pair
from tests.postgres_servers import Psql

ROOT: Final = Path(__file__).parents[2]
SOURCE: Final = ROOT / "src" / "rota"
PAGES: Final = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
GUIDES: Final = sorted(ROOT.glob("docs/guide/*.md"))
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
PROGRAM_NAME: Final = re.compile(r"# (\w+\.py)\n")

KNOWN_VARIABLES: Final = frozenset(
    {
        "ROTA_APP",
        "ROTA_DATABASE",
        "ROTA_CONFIG",
        "ROTA_DEV_VENV",
        "ROTA_DEV_PYTHON",
        "ROTA_DEV_REQUIRE",
        "ROTA_DEV_FLAT_JOBS",
        "ROTA_DEV_SEED",
        "ROTA_DEV_FFMPEG",
    }
)
"""Variables that are no settings."""


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@dataclass(frozen=True, slots=True)
class Block:
    """One block of code in a page."""

    language: str
    text: str
    line: int

    @property
    def program(self) -> str | None:
        """The file that this block is, if it is a program."""
        found = PROGRAM_NAME.match(self.text) if self.language == "python" else None
        return found and found[1]


def blocks_of(page: Path, *, heading: str | None = None) -> list[Block]:
    """The blocks of a page, or of the one section with this heading, in their order."""
    text = page.read_text(encoding="utf-8")
    first, last = 0, len(text)
    if heading is not None:
        found = re.search(rf"^{re.escape(heading)}$", text, flags=re.MULTILINE)
        assert found, f"{name_of(page)} has no section '{heading}'"
        first = found.end()
        end = re.compile(r"^## ", flags=re.MULTILINE).search(text, first)
        last = end.start() if end else last
    return [
        Block(found[1], found[2], text.count("\n", 0, found.start()) + 1)
        for found in re.finditer(r"^```(\w*)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
        if first <= found.start() < last
    ]


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


def test_the_readme_names_the_two_commands() -> None:
    (block,) = blocks_of(ROOT / "README.md", heading="## Two commands")
    commands = [line.partition("#")[0].strip() for line in block.text.splitlines()]
    assert commands == ["./dev demo", "./dev test"]
    usage = subprocess.run([ROOT / "dev", "help"], capture_output=True, text=True, check=True).stdout
    assert all(re.search(rf"^  {command.split()[1]} ", usage, flags=re.MULTILINE) for command in commands)


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


# Blocks that are no programs


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_python_speaks_of_names_that_exist(page: Path) -> None:
    app = rota.App()
    known: dict[str, Callable[[str], bool]] = {
        "rota": lambda name: hasattr(rota, name),
        "app": lambda name: hasattr(rota.App, name) or name in vars(app),
        "ctx": lambda name: hasattr(rota.Context, name),
        "worker": lambda name: hasattr(rota.Worker, name) or name in inspect.getsource(rota.Worker.__init__),
    }
    for block in blocks_of(page):
        if block.language != "python":
            continue
        where = f"{name_of(page)}:{block.line}"
        tree = compile(block.text, where, "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in known:
                assert known[node.value.id](node.attr), f"{where} has {node.value.id}.{node.attr}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_sql_runs(page: Path, migrated_dsn: str, psql: Psql) -> None:
    for block in blocks_of(page):
        if block.language == "sql":
            psql(migrated_dsn, f"BEGIN; CREATE TABLE IF NOT EXISTS videos (path text);\n{block.text}\n; ROLLBACK")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_variables_are_settings(page: Path) -> None:
    known = {"ROTA_" + name.upper() for name in CHECKS} | KNOWN_VARIABLES
    named = set(re.findall(r"\bROTA_[A-Z_]*[A-Z]\b", page.read_text()))
    assert not [name for name in named if name not in known and not name.startswith("ROTA_LIMIT_")]


def test_commands_exist() -> None:
    said = {
        " ".join(found.split())
        for page in PAGES
        for found in re.findall(
            r"\brota ((?:jobs|migrate|admin|passes) [a-z]+|(?:worker|dev|demo|doctor|top|pause|resume)\b)",
            page.read_text(),
        )
    }
    commands = {line for line in said if line.split()[-1] not in ("commands", "command", "with")}
    assert {"worker", "dev", "demo", "migrate up", "migrate status", "jobs list", "jobs show"} <= commands
    for command in sorted(commands):
        done = CliRunner().invoke(main.app, [*command.split(), "--help"])
        assert done.exit_code == 0, f"rota {command}\n{done.output}"


# Tables

OTHERWISE_SET: Final = {
    "limits": "ROTA_LIMIT_<KIND>",
    "fleet_limits": "ROTA_FLEET_LIMIT_<KIND>",
    "roles": "only in the file",
}
"""Settings without a variable of their own name."""


def test_the_table_of_settings_is_that_of_the_code() -> None:
    page = (ROOT / "docs/OPERATING.md").read_text()
    rows = re.findall(
        r"^\| `(\w+)` \| (`ROTA_\w+(?:<KIND>)?`|only in the file) \| ([^|]+) \| ([^|]+) \|", page, flags=re.MULTILINE
    )
    shown = {name: (variable.strip("`"), default.strip("` ").replace(",", "")) for name, variable, default, _ in rows}
    defaults = Settings()
    told = {}
    for entry in fields(Settings):
        value = getattr(defaults, entry.name)
        variable = OTHERWISE_SET.get(entry.name, f"ROTA_{entry.name.upper()}")
        if isinstance(value, tuple):
            value = ",".join(value)
        told[entry.name] = (variable, f"{value:g}" if isinstance(value, int | float) else str(value or "none"))
    assert shown == told
    for name, _, _, allowed in rows:
        check = CHECKS.get(name)
        bounds = re.match(r"([\d.,]+) to ([\d.,]+)", allowed)
        if check is None or bounds is None:
            continue
        low, high = (float(bound.replace(",", "")) for bound in bounds.groups())
        whole = "whole" in refusal_of(check, "x")
        step: float = 1 if whole else low / 100 or 0.01
        for inside in (low, high):
            check(int(inside) if whole else inside)
        assert refusal_of(check, str(low - step)), f"{name} allows less than {low:g}"
        assert refusal_of(check, str(high + 1)), f"{name} allows more than {high:g}"


def refusal_of(check: Callable[[object], object], value: object) -> str:
    """What a check says of a bad value; empty if it takes it."""
    try:
        check(value)
    except ValueError as error:
        return str(error)
    return ""


def test_the_table_of_events_is_that_of_the_code() -> None:
    page = (ROOT / "docs/OPERATING.md").read_text()
    section = page.partition("\n## Logs\n")[2].partition("\n## ")[0]
    shown = dict(re.findall(r"^\| `([^`]+)` \| (\w+) \|", section, flags=re.MULTILINE))
    assert shown == dict(logged())


def logged() -> Iterator[tuple[str, str]]:
    """Each event that the worker and its parent log, with its level."""
    for path in [*SOURCE.glob("queue/**/*.py"), SOURCE / "io" / "processes.py"]:
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(func=ast.Attribute(ast.Name("log"), level), args=[ast.Constant(str(event))]):
                    yield event, "error" if level == "exception" else level
                case ast.AnnAssign(target=ast.Name(id="LOSS_WORDS"), value=ast.Dict(values=words)):
                    yield from ((ast.literal_eval(word), "warning") for word in words)
                case ast.AnnAssign(target=ast.Name(id="EVENT"), value=ast.Constant(str(event))):
                    yield event, "critical"  # the warden's last word, which has no log of its own


def test_the_drawing_of_states_is_the_table_of_states() -> None:
    page = (ROOT / "docs/guide/handlers.md").read_text()
    drawn = set(re.findall(r"^  (\w+) --> (\w+)", page, flags=re.MULTILINE))
    assert drawn == {(str(one), str(other)) for one, others in NEXT_STATES.items() for other in others}
