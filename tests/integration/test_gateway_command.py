"""`rota gateway` as a process, and the commands by which an operator looks after devices."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rota.cli.main import app
from rota.errors import DeviceNotFound, PairingError, SettingsError
from rota.io.postgres import Database, Target
from rota.runners.io.devices import Devices
from rota.runners.io.replica import keys_of, names_of
from rota.runners.pairing import read_code
from rota.settings import Settings
from tests.integration.gateways import KEY, TOKEN


def environment(dsn: str, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ROTA_")}
    return {**kept, "ROTA_DSN": dsn, **more}


def rota(dsn: str, words: Sequence[str]) -> str:
    """Runs a command in this process, and gives what it wrote."""
    kept = {name: None for name in os.environ if name.startswith("ROTA_")}
    ran = CliRunner().invoke(app, list(words), env={**kept, "ROTA_DSN": dsn})
    if ran.exception is not None:
        raise ran.exception
    return ran.output


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


def test_what_a_gateway_needs_is_said_in_one_line() -> None:
    for key in (None, "short", ", ,"):
        with pytest.raises(SettingsError, match="ROTA_GATEWAY_KEY") as caught:
            keys_of(Settings(gateway_key=key))
        assert "openssl rand" in str(caught.value) and "short" not in str(caught.value)
    with pytest.raises(SettingsError, match="ROTA_GATEWAY_NAMES"):
        names_of(Settings(gateway_host="0.0.0.0"))
    assert "localhost" in names_of(Settings())
    assert names_of(Settings(gateway_host="0.0.0.0", gateway_names="A.example., [::1]")) == {"a.example", "::1"}


def test_an_operator_looks_after_devices(migrated_dsn: str) -> None:
    assert "No device" in rota(migrated_dsn, ["runner", "list"])
    code = rota(migrated_dsn, ["runner", "code", "--org", "acme", "--name", "Ada"]).strip()
    assert len(code) == 14 and code.count("-") == 2
    device = asyncio.run(_pair(migrated_dsn, code))
    rota(migrated_dsn, ["runner", "rename", device, "studio"])
    assert "disabled acme" in rota(migrated_dsn, ["runner", "disable", "acme", "--reason", "unpaid"])
    assert "disabled" in rota(migrated_dsn, ["runner", "list"])
    assert json.loads(rota(migrated_dsn, ["runner", "list", "--json"]))[0]["org_disabled"]
    assert rota(migrated_dsn, ["runner", "enable", "acme"]) == "enabled acme\n"
    assert "was not disabled" in rota(migrated_dsn, ["runner", "enable", "acme"])
    rota(migrated_dsn, ["runner", "revoke", device])
    (listed,) = json.loads(rota(migrated_dsn, ["runner", "list", "--json"]))
    assert (listed["device_id"], listed["name"], listed["revoked_at"] is None) == (device, "studio", False)
    assert "studio" in rota(migrated_dsn, ["runner", "list", "--org", "acme"])
    assert rota(migrated_dsn, ["runner", "credential"]).startswith("rpool_")
    audit = json.loads(rota(migrated_dsn, ["runner", "audit", "--org", "acme", "--json"]))
    assert [row["event"] for row in audit] == [
        "device revoked", "organisation enabled", "organisation disabled", "device renamed", "device paired",
        "code made",
    ]  # fmt: skip
    assert audit[2]["detail"] == "unpaid"
    assert "pool credential made" in rota(migrated_dsn, ["runner", "audit"])
    for words in (["revoke", "nobody"], ["rename", "nobody", "x"]):
        with pytest.raises(DeviceNotFound, match="rota runner list"):
            rota(migrated_dsn, ["runner", *words])


def test_what_an_operator_does_is_told_as_json_too(migrated_dsn: str) -> None:
    def told(*words: str) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(rota(migrated_dsn, ["runner", *words, "--json"]))
        return answer

    made = told("code", "--org", "acme", "--name", "Ada", "--minutes", "2")
    code = made.pop("code")
    assert made == {"org_id": "acme", "name": "Ada", "valid_s": 120.0}
    device = asyncio.run(_pair(migrated_dsn, code))
    assert told("rename", device, "studio") == {"device_id": device, "name": "studio"}
    assert told("disable", "acme") == {"org_id": "acme", "disabled": True}
    assert told("enable", "acme") == {"org_id": "acme", "disabled": False, "was_disabled": True}
    assert not told("enable", "acme")["was_disabled"]
    assert told("revoke", device) == {"device_id": device, "revoked": True}
    made = told("credential", "--overlap-minutes", "1")
    assert made["credential"].startswith("rpool_") and made["overlap_s"] == 60


def test_a_name_is_kept_whole_or_refused(migrated_dsn: str) -> None:
    device = asyncio.run(_pair(migrated_dsn, rota(migrated_dsn, ["runner", "code", "--org", "acme"]).strip()))
    assert rota(migrated_dsn, ["runner", "rename", device, "n" * 200]) == f"{device} is {'n' * 200} now\n"
    with pytest.raises(PairingError, match="1 to 200"):
        rota(migrated_dsn, ["runner", "rename", device, "n" * 201])
    assert rota(migrated_dsn, ["runner", "audit", "--org", "nobody"]) == "Nothing has happened to nobody.\n"


async def _pair(dsn: str, code: str) -> str:
    database = Database(Target(dsn))
    try:
        return (await Devices(database).pair(read_code(code), b"k" * 32)).device_id
    finally:
        await database.stop()
