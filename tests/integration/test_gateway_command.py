"""`rota gateway` as a process, and the commands by which an operator looks after devices."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from tests.integration.gateways import KEY, TOKEN


def environment(dsn: str, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ROTA_")}
    return {**kept, "ROTA_DSN": dsn, **more}


def rota(dsn: str, words: Sequence[str], *, status: int = 0, **more: str) -> str:
    """Runs a command, and gives what it wrote."""
    ran = subprocess.run(
        [sys.executable, "-m", "rota.cli.main", *words], env=environment(dsn, **more), capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert ran.returncode == status, ran.stderr
    return ran.stdout + ran.stderr


def test_a_gateway_says_where_it_is_and_ends_on_sigterm(migrated_dsn: str, tmp_path: Path) -> None:
    where = tmp_path / "address"
    gateway = subprocess.Popen(
        [sys.executable, "-m", "rota.cli.main", "gateway", "--port", "0", "--address-file", str(where)],
        env=environment(migrated_dsn, ROTA_GATEWAY_KEY=KEY, ROTA_GATEWAY_TOKEN=TOKEN),
    )
    try:
        give_up_at = time.monotonic() + 60
        while not where.exists() or not where.read_text().endswith("\n"):
            assert gateway.poll() is None and time.monotonic() < give_up_at
            time.sleep(0.05)
        with urllib.request.urlopen(where.read_text().strip() + "/readyz", timeout=30) as answer:
            assert answer.read() == b"ready\n"
        gateway.send_signal(signal.SIGTERM)
        assert gateway.wait(60) == 0
    finally:
        gateway.kill()
        gateway.wait()


def test_what_a_gateway_needs_is_said_in_one_line(migrated_dsn: str) -> None:
    said = rota(migrated_dsn, ["gateway"], status=2)
    assert "ROTA_GATEWAY_KEY" in said and "openssl rand" in said and "Traceback" not in said
    said = rota(migrated_dsn, ["gateway", "--host", "0.0.0.0"], status=2, ROTA_GATEWAY_KEY=KEY)
    assert "ROTA_GATEWAY_NAMES" in said
    said = rota(migrated_dsn, ["gateway"], status=2, ROTA_GATEWAY_KEY="short")
    assert "ROTA_GATEWAY_KEY" in said and "'short'" not in said


def test_an_operator_looks_after_devices(migrated_dsn: str) -> None:
    assert "No device" in rota(migrated_dsn, ["runner", "list"])
    code = rota(migrated_dsn, ["runner", "code", "--org", "acme", "--name", "Ada"]).strip()
    assert len(code) == 14 and code.count("-") == 2
    assert rota(migrated_dsn, ["runner", "credential"]).startswith("rpool_")
    audit = json.loads(rota(migrated_dsn, ["runner", "audit", "--org", "acme", "--json"]))
    assert [row["event"] for row in audit] == ["code made"]
    assert "pool credential made" in rota(migrated_dsn, ["runner", "audit"])
    for words in (["revoke", "nobody"], ["rename", "nobody", "x"]):
        assert "rota runner list" in rota(migrated_dsn, ["runner", *words], status=1)
