"""`rota top` as a person calls it: live on a terminal until Ctrl-C, and once elsewhere."""

import json
import os
import pty
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from tests.integration.programs import ROTA, clean_environment, run, running, until
from tests.postgres_servers import Psql

WAIT_S = 60.0
"""Generous: only a failing test waits that long."""


def test_without_a_terminal_it_is_printed_once(tmp_path: Path, migrated_dsn: str, psql: Psql) -> None:
    psql(migrated_dsn, "SELECT count(rota.enqueue('film')) FROM generate_series(1, 1234)")
    for args in ((), ("--once",)):
        done = run([*ROTA, "top", *args], folder=tmp_path, environ={"ROTA_DSN": migrated_dsn})
        assert (done.status, done.err) == (0, "")
        lines = done.out.splitlines()
        assert lines[0].startswith("rota top  postgresql://") and lines[0].endswith(" UTC")
        assert lines[1:3] == ["0 running, 1,234 waiting, 0 servers", "nobody takes: film"]
        assert lines[4].split()[:4] == ["film", "0", "1,234", "·"]
    done = run([*ROTA, "top", "--json"], folder=tmp_path, environ={"ROTA_DSN": migrated_dsn})
    said = json.loads(done.out)
    assert (said["due"], said["kinds"][0]["kind"], said["kinds"][0]["due"]) == (1234, "film", 1234)


def test_a_live_worker_is_seen_by_the_view_the_doctor_and_why(tmp_path: Path, migrated_dsn: str, psql: Psql) -> None:
    (tmp_path / "shop.py").write_text("import rota\napp = rota.App()\n@app.job(limit=4)\ndef film(ctx): ...\n")
    lost = psql(migrated_dsn, "SELECT id FROM rota.enqueue('flim')")
    environ = {"ROTA_DSN": migrated_dsn}
    with running([*ROTA, "worker", "shop:app", "--alone"], folder=tmp_path, environ=environ) as worker:
        worker.says("worker started")

        def answer(*args: str) -> Any:
            return json.loads(run([*ROTA, *args, "--json"], folder=tmp_path, environ=environ).out)

        (server,) = until(lambda: answer("top")["servers"], "the worker says that it is there")
        assert (server["kinds"], server["running"], server["draining"]) == ({"film": 4}, {}, False)
        said = {(check["about"], check["level"]): check["words"] for check in answer("doctor")["checks"]}
        assert said["servers", "ok"] == "1 live" and "takes the kind flim" in said["kinds", "warning"]
        (gate,) = answer("jobs", "why", lost)["gates"]
        assert gate["words"] == "No live server takes kind flim. Is it a slip for film?"
        worker.signal(signal.SIGTERM)
        assert worker.status() == 0
        assert answer("top")["servers"] == [], "one that stops takes its row away"


def test_on_a_terminal_it_goes_on_until_ctrl_c(tmp_path: Path, migrated_dsn: str, psql: Psql) -> None:
    ours, theirs = pty.openpty()
    program = subprocess.Popen(
        [*ROTA, "top", "--every", "0.5"], cwd=tmp_path, stdin=theirs, stdout=theirs, stderr=theirs,
        env=clean_environment({"ROTA_DSN": migrated_dsn, "COLUMNS": "80", "LINES": "24", "TERM": "xterm"}),
    )  # fmt: skip
    os.close(theirs)
    try:
        shown_until(ours, "0 waiting")
        psql(migrated_dsn, "SELECT count(rota.enqueue('film')) FROM generate_series(1, 7)")
        shown_until(ours, "7 waiting")
        program.send_signal(signal.SIGINT)
        assert program.wait(WAIT_S) == 0
    finally:
        program.kill()
        program.wait()
        os.close(ours)


def shown_until(terminal: int, words: str) -> None:
    """Reads what a terminal shows until it shows these words."""
    seen, give_up_at = "", time.monotonic() + WAIT_S
    while words not in seen:
        assert time.monotonic() < give_up_at, f"{words!r} is not in {seen!r}"
        seen += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", os.read(terminal, 65536).decode(errors="replace"))
