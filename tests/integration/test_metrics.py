"""Scrapes of real workers: one process and several, one that ends itself, with and without a token."""

import json
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.programs import ROTA, Program, nothing_runs, running, until
from tests.postgres_servers import Psql

SHOP = """
import threading
import rota

app = rota.App()

@app.job()
async def hello(ctx):
    return None

@app.job(max_tries=1)
async def bad(ctx):
    raise ValueError("no")

@app.job()
async def copy(ctx):
    await ctx.run("cat", input=b"x" * 5000)

@app.job(lease_s=1.5, heartbeat_s=0.5, max_tries=1)
def deaf(ctx):
    threading.Event().wait()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "shop.py").write_text(SHOP)
    yield tmp_path
    nothing_runs(tmp_path)


def worker(folder: Path, dsn: str, *args: str, **settings: str) -> Any:
    environ = {"ROTA_DSN": dsn, "ROTA_METRICS_PORT": "0", **settings}
    return running([*ROTA, "worker", "shop:app", *args], folder=folder, environ=environ)


def port_of(program: Program) -> int:
    """The port that the program says it answers on."""
    program.says("metrics are served")
    until(lambda: program.err.rpartition("metrics are served")[2].count("\n"), "the whole line")
    (line,) = [line for line in program.err.splitlines() if "metrics are served" in line]
    port: int = json.loads(line)["port"]
    return port


def scrape(port: int, **headers: str) -> dict[tuple[str, ...], float]:
    """The values by name and the values of the labels."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers=headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        text = answer.read().decode()
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def add(psql: Psql, dsn: str, kind: str, count: int = 1) -> None:
    psql(dsn, f"SELECT count(rota.enqueue('{kind}')) FROM generate_series(1, {count})")


def test_the_parent_adds_up_its_workers_also_one_that_had_to_end_itself(
    folder: Path, migrated_dsn: str, psql: Psql
) -> None:
    add(psql, migrated_dsn, "hello", 40)
    add(psql, migrated_dsn, "bad")
    add(psql, migrated_dsn, 'odd "kind"\\ with\nlines')
    with worker(folder, migrated_dsn, "--processes", "2", ROTA_METRICS_PREFIX="kairos") as program:
        port = port_of(program)
        until(lambda: scrape(port).get(("kairos_job_run_seconds_count", "hello")) == 40, "all runs are counted")
        until(lambda: scrape(port).get(("kairos_job_failures_total", "bad")) == 1, "the failure is counted")
        assert scrape(port)["kairos_fenced_total",] == 0
        add(psql, migrated_dsn, "deaf")
        program.says("a process ended; it starts again")
        until(lambda: scrape(port)["kairos_fenced_total",] == 1, "the process that ended itself is counted")
        program.says("worker started", count=3)
        seen = scrape(port)
        assert seen["kairos_job_run_seconds_count", "hello"] == 40, "what the process had counted is still there"
        assert seen["kairos_job_lease_kills_total", "deaf"] == 1
        assert seen["kairos_stall_kills_total", "fenced"] == 1
        assert seen["kairos_job_failures_total", "deaf"] == 1
        assert seen["kairos_overlap_seconds_total",] == 0
        assert seen["kairos_job_wait_seconds_count", "hello"] == 40
        assert seen["kairos_claim_seconds_count",] > 0
        assert seen["kairos_database_up",] == 1
        assert ("kairos_jobs", 'odd "kind"\\ with\nlines', "queued") in seen
        program.signal(signal.SIGTERM)
        assert program.status() == 0


def test_a_worker_without_a_parent_answers_for_itself(folder: Path, migrated_dsn: str, psql: Psql) -> None:
    add(psql, migrated_dsn, "hello", 3)
    with worker(folder, migrated_dsn, "--alone", ROTA_METRICS_TOKEN="of the scraper") as program:
        port = port_of(program)
        told = {"Authorization": "Bearer of the scraper"}
        until(lambda: scrape(port, **told).get(("rota_job_run_seconds_count", "hello")) == 3, "all runs are counted")
        for wrong in ({}, {"Authorization": "Bearer of another"}, {"Authorization": "Basic of the scraper"}):
            with pytest.raises(urllib.error.HTTPError, match="401"):
                scrape(port, **wrong)
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=30)
        program.signal(signal.SIGTERM)
        assert program.status() == 0
        assert "of the scraper" not in program.err


def test_a_port_that_is_taken_is_said(folder: Path, migrated_dsn: str) -> None:
    with worker(folder, migrated_dsn, "--alone") as first:
        port = port_of(first)
        with worker(folder, migrated_dsn, ROTA_METRICS_PORT=str(port)) as second:
            assert second.status() == 2
            assert f"metrics_port = {port} on 127.0.0.1 cannot be had" in second.err
        first.signal(signal.SIGTERM)
        assert first.status() == 0


def test_without_a_port_nothing_is_served_and_nothing_counted(folder: Path, migrated_dsn: str) -> None:
    with running([*ROTA, "worker", "shop:app"], folder=folder, environ={"ROTA_DSN": migrated_dsn}) as program:
        program.says("worker started")
        assert "metrics are served" not in program.err
        program.signal(signal.SIGTERM)
        assert program.status() == 0


EXEC = """
[waitgroups.all]
processes = 1
[services.cat]
command = ["cat"]
waitgroup = "all"
[services.hold]
command = ["sleep", "600"]
waitgroup = "all"
"""


def test_what_a_worker_has_to_do_with_exec_servers(folder: Path, migrated_dsn: str, psql: Psql) -> None:
    (folder / "exec.toml").write_text(EXEC)
    told = folder / "address"
    serve = [*ROTA, "execserver", "--address-file", str(told), "--port"]

    def series(port: int, name: str, *labels: str) -> float | None:
        return scrape(port).get((f"rota_exec_{name}", *labels))

    with running([*serve, "0"], folder=folder, name="server") as server:
        until(lambda: told.exists() and told.read_text().endswith("\n"), "its address")
        address = told.read_text().strip().removeprefix("http://")
        shown = f"http://{address}"
        with worker(folder, migrated_dsn, ROTA_EXEC_ADDRESSES=address) as program:
            port = port_of(program)
            add(psql, migrated_dsn, "copy", 3)
            until(lambda: series(port, "offers_total", "taken") == 3, "three calls had a slot")
            assert series(port, "grant_seconds_count") == 3
            assert series(port, "offers_total", "surplus") == 0
            assert series(port, "connections", shown) == 1
            with running([*ROTA, "exec", "--exec-addresses", address, "hold"], folder=folder, name="holder"):
                overview = f"http://{address}/overview"
                until(
                    lambda: b'"running":1' in urllib.request.urlopen(overview, timeout=30).read(), "the slot is taken"
                )
                add(psql, migrated_dsn, "copy")
                until(lambda: series(port, "calls_parked") == 1, "one waits")
            until(lambda: series(port, "offers_total", "taken") == 4, "it had its slot")
            server.signal(signal.SIGTERM)
            assert server.status() == 0
            until(lambda: series(port, "connections", shown) == 0, "the connection is gone")
            with running([*serve, address.rpartition(":")[2]], folder=folder, name="next"):
                until(lambda: series(port, "connections", shown) == 1, "it is connected again")
                # Once more, if it came back to the one that was ending.
                assert series(port, "reconnects_total", shown) in (1, 2)
            program.signal(signal.SIGTERM)
            assert program.status() == 0
