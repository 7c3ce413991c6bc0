"""`python -m bench queue` in its smallest form: it measures, reports and writes its JSON."""

import json
import subprocess
import sys
from pathlib import Path

import asyncpg

from bench.queue.adapters import raw, rota

REPOSITORY = Path(__file__).parents[2]
TINY = ["--jobs", "200", "--singles", "10", "--wakeups", "5", "--finished", "300", "--future", "200", "--behind", "300"]


def run(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bench", *args], cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=180
    )


def test_the_queue_bench_measures_and_writes_its_bars(tmp_path: Path) -> None:
    found = tmp_path / "bench.json"
    works = ["--only", "W3", "W5"]
    done = run("queue", "--quick", "--patience", "0", *TINY, *works, "--place", str(tmp_path), "--json", str(found))
    assert done.returncode == 0, done.stdout + done.stderr
    said = json.loads(found.read_text())
    assert [set(bar) for bar in said["bars"]] == [{"name", "value", "bar", "ok"}] * 2
    assert all(value > 0 for name, value in said["medians"].items() if "_cpu" not in name)  # a tick may be too long
    assert {"drain.rota", "drain.raw", "drain_commits.rota", "wake_p50.rota", "wake_p99.notify"} <= set(said["medians"])
    assert said["sizes"]["jobs"] == 200
    assert {"cores", "cpu", "postgres", "sync_ms"} <= set(said["machine"])
    assert "| W3 | drain, one process" in done.stdout
    assert "round 1/1  W5" in done.stderr
    assert list(tmp_path.iterdir()) == [found]


def test_the_slots_bench_measures_and_writes_its_bars(tmp_path: Path) -> None:
    found = tmp_path / "bench.json"
    done = run("slots", "commands", "--quick", "--json", str(found))
    assert done.returncode == 0, done.stdout + done.stderr
    said = json.loads(found.read_text())
    assert [bar["name"] for bar in said["bars"]] == ["commands / bare spawn loop"]
    assert set(said["medians"]) == {"cycles.rota", "commands.rota", "commands.bare1", "commands.bare2"}
    assert "| commands | /bin/true in 2 slots, WANT to DONE" in done.stdout


def test_the_slot_bench_measures_the_book_and_grants(tmp_path: Path) -> None:
    found = tmp_path / "bench.json"
    done = run("slots", "book", "grants", "--quick", "--json", str(found))
    assert done.returncode == 0, done.stdout + done.stderr
    said = json.loads(found.read_text())
    assert [bar["bar"] for bar in said["bars"]] == [0.333, 0.333, 1.5, 0.3, 1.5]
    assert all(value > 0 for value in said["medians"].values())


def test_the_slots_bench_measures_turns_and_silence(tmp_path: Path) -> None:
    found = tmp_path / "bench.json"
    done = run("slots", "turns", "idle", "--quick", "--json", str(found))
    assert done.returncode == 0, done.stdout + done.stderr
    said = json.loads(found.read_text())
    # Whoever is next in turn has the next grant; a grant may be on its way already.
    assert said["medians"]["fair.rota"] <= 2
    assert said["medians"]["urgent.rota"] <= 2
    assert said["medians"]["frames.rota"] == 0
    assert "HyperQueue" not in done.stdout


def test_the_runners_bench_measures_ops_assignments_and_the_gate(tmp_path: Path) -> None:
    found = tmp_path / "bench.json"
    done = run("runners", "op", "assign", "gate", "--quick", "--json", str(found))
    assert done.returncode == 0, done.stdout + done.stderr
    said = json.loads(found.read_text())
    keys = {"op.rota", "op.echo", "assign.rota", "assign.raw", "gate.rota", "gate.ffmpeg"}
    assert set(said["medians"]) == keys and all(value > 0 for value in said["medians"].values())
    assert [bar["bar"] for bar in said["bars"]] == [4.0, 5.0, 0.1]
    assert said["bars"][2]["ok"], "CPU time on both sides, and a hundred times apart"
    assert "NATS" not in done.stdout and "in the crowd" not in done.stdout


def test_a_bench_that_does_not_exist_is_said_so() -> None:
    done = run("nothing")
    assert done.returncode == 2
    assert "queue" in done.stderr


async def test_both_adapters_add_jobs_in_all_their_ways(dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    for adapter, table in ((rota, "rota.open_jobs"), (raw, "raw_jobs")):
        await adapter.setup(dsn)
        assert await connection.fetchval(adapter.PENDING) is False
        client = await adapter.open(dsn)
        await adapter.enqueue_one(client, 1, 2.5)
        payload = await connection.fetchval(f"SELECT payload FROM {table}")
        assert json.loads(payload) == {"number": 1, "sent_at": 2.5}
        for add in adapter.bulks.values():
            await (await add(client, 60))()
        await adapter.close(client)
        assert await connection.fetchval(adapter.PENDING) is True
        assert await connection.fetchval(adapter.DONE) == 0
    assert await connection.fetchval("SELECT count(*) FROM rota.open_jobs") == 181
    assert await connection.fetchval("SELECT count(*) FROM raw_jobs") == 61
    await connection.close()


async def test_history_is_no_work_that_is_due(dsn: str) -> None:
    await rota.setup(dsn)
    connection = await asyncpg.connect(dsn)
    await connection.execute(rota.HISTORY["finished"], 50)
    await connection.execute(rota.HISTORY["future"], 40)
    assert await connection.fetchval(rota.DONE) == 50
    assert await connection.fetchval("SELECT count(DISTINCT id) FROM rota.jobs") == 90
    assert await connection.fetchval(rota.PENDING) is False
    await connection.close()
