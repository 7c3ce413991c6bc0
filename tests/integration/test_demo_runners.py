"""`rota demo runners` as a person without a terminal sees it; leases are shorter here, or it would take a minute."""

import os
import re
from pathlib import Path

from tests.faults.processes import ROOT
from tests.faults.slot_sites import FAULTS_ROTA
from tests.integration.programs import Done, nothing_runs, run

LEASE_S = "9"


def demo(folder: Path, *options: str) -> Done:
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environ = {"PYTHONPATH": paths, "FAULTS_LEASE_S": LEASE_S, "COLUMNS": "120"}
    return run([*FAULTS_ROTA, "demo", "runners", *options], folder=folder, environ=environ, timeout_s=240)


def test_a_killed_runner_and_a_sleeping_one_cost_a_try_each_and_all_films_are_cut(tmp_path: Path) -> None:
    done = demo(tmp_path)
    assert (done.status, done.err) == (0, ""), done.out + done.err
    told = " ".join(done.out.split())
    for text in (
        "desk-1, a desktop paired with a one-time code", "verified and promoted both", "desk-1 was killed",
        "pool-1 fell asleep", "pool-1 has woken up: it is told that its lease is lost", "objects that were left: 0",
    ):  # fmt: skip
        assert text in told, done.out
    rows = re.findall(r"^(CloudPool|OrgRunner) +(\w+) +(\d+) +(films/\d\.mp4) +(\d+)", done.out, re.MULTILINE)
    assert [(row[0], row[1], int(row[2]), row[3]) for row in rows] == [
        ("CloudPool", "done", 1, "films/1.mp4"), ("OrgRunner", "done", 1, "films/2.mp4"),
        ("CloudPool", "done", 2, "films/3.mp4"), ("OrgRunner", "done", 2, "films/4.mp4"),
    ]  # fmt: skip
    nothing_runs(tmp_path)
