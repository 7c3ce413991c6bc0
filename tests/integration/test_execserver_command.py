"""`rota execserver` and `rota config check` as a person calls them."""

import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rota.cli.main import main
from tests.integration.programs import ROTA, Done, Program, run, running, until

PATHS = {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
CONFIG = """
[server]
{server}
[waitgroups.all]
processes = 2
[services.cat]
command = ["cat"]
waitgroup = "all"
[services.hold]
command = ["sleep", "600"]
waitgroup = "all"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "box"
    made.mkdir()
    return made


def rota(folder: Path, *words: str, **environ: str) -> Done:
    return run([*ROTA, *words], folder=folder, environ={**PATHS, **environ})


@contextmanager
def exec_server(folder: Path, server: str = "", **environ: str) -> Iterator[tuple[Program, str]]:
    (folder / "exec.toml").write_text(CONFIG.format(server=server))
    told = folder / "address"
    told.unlink(missing_ok=True)
    words = ["execserver", "--port", "0", "--address-file", str(told)]
    with running([*ROTA, *words], folder=folder, environ={**PATHS, **environ}, name="execserver") as program:
        program.says("exec server at")
        until(lambda: told.exists() and told.read_text().endswith("\n"), "its address")
        yield program, told.read_text().strip()


def look(address: str) -> Any:
    with urllib.request.urlopen(f"{address}/overview", timeout=30) as answer:
        return json.load(answer)


def check(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *more: str) -> Done:
    """`rota config check` in this process; starting one takes longer than all that it does."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["rota", "config", "check", *more])
    with pytest.raises(SystemExit) as ended:
        main()
    out, err = capsys.readouterr()
    return Done(int(ended.value.code or 0), out, err)


def test_config_check_says_what_is_there(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "exec.toml").write_text(CONFIG.format(server=""))
    done = check(folder, capsys, monkeypatch)
    assert (done.status, done.err) == (0, "")
    assert "exec.toml: fine, 2 services (cat, hold), slots: all 2" in done.out
    config = {"file": "exec.toml", "services": ["cat", "hold"], "waitgroups": {"all": 2}, "missing": []}
    assert json.loads(check(folder, capsys, monkeypatch, "--json").out) == {"settings": "fine", "config": config}
    assert "no program" not in done.out
    for program in ("/no/such/tool", "./tool", "no-such-tool"):
        (folder / "exec.toml").write_text(CONFIG.format(server="").replace('["cat"]', f'["{program}"]'))
        done = check(folder, capsys, monkeypatch)
        assert done.status == 0
        assert f"exec.toml: services.cat.command: there is no program '{program}' on this machine" in done.out


def test_config_check_without_an_exec_server_is_about_the_settings(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "there is none here" in check(folder, capsys, monkeypatch).out
    assert json.loads(check(folder, capsys, monkeypatch, "--json").out) == {"settings": "fine", "config": None}
    assert check(folder, capsys, monkeypatch, "--config", "other.toml").status == 2
    monkeypatch.setenv("ROTA_LIMITT", "3")
    bad = check(folder, capsys, monkeypatch)
    assert (bad.status, "ROTA_LIMITT is no setting" in bad.err) == (2, True)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("services = 7", "exec.toml: services: give a table"),
        (CONFIG.format(server="sped = 1"), "server.sped: this is no setting"),
        (CONFIG.format(server="").replace('"all"', '"al"'), "services.cat.waitgroup: there is no waitgroup 'al'"),
        (CONFIG.format(server='listen = "0.0.0.0:8750"'), "set a token"),
        (CONFIG.format(server='scratch = "exec.toml/x"'), "server.scratch names exec.toml/x"),
        (CONFIG.format(server='tls_cert = "a"\ntls_key = "b"'), "server.tls_cert names a"),
        (CONFIG.format(server="weights = { gold = 3 }"), 'add fair_by = "tenant"'),
        ("[", "is no TOML"),
    ],
)
def test_a_mistake_is_one_sentence_with_its_place(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, text: str, says: str
) -> None:
    (folder / "exec.toml").write_text(text)
    done = check(folder, capsys, monkeypatch)
    assert (done.status, says in done.err) == (2, True), done.err
    assert "Traceback" not in done.err


def test_an_exec_server_does_not_start_with_a_mistake(folder: Path) -> None:
    (folder / "exec.toml").write_text(CONFIG.format(server='listen = "0.0.0.0:0"'))
    done = rota(folder, "execserver")
    assert (done.status, "set a token" in done.err) == (2, True)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        (folder / "exec.toml").write_text(CONFIG.format(server=""))
        done = rota(folder, "execserver", "--port", str(taken.getsockname()[1]))
    assert (done.status, "cannot listen on 127.0.0.1" in done.err) == (2, True)


def test_a_scratch_folder_that_is_none_is_said_at_the_start(folder: Path) -> None:
    (folder / "exec.toml").write_text(CONFIG.format(server='scratch = "exec.toml/x"'))
    done = rota(folder, "execserver", "--port", "0")
    assert (done.status, "The scratch folder exec.toml/x cannot be used: Not a directory" in done.err) == (2, True)


def test_what_it_learned_is_there_after_a_restart(folder: Path) -> None:
    state = folder / "state"
    for runs in (1, 2):
        with exec_server(folder, f'state = "{state}"') as (program, address):
            assert rota(folder, "exec", "cat", ROTA_EXEC_ADDRESSES=address).status == 0
            assert look(address)["services"]["cat"]["runs"] == runs
            program.signal(signal.SIGTERM)
            assert program.status() == 0


def test_a_second_signal_hands_back_at_once_what_still_runs(folder: Path) -> None:
    with exec_server(folder, "drain_s = 600") as (program, address):
        waiting = [*ROTA, "exec", "hold"]
        environ = {**PATHS, "ROTA_EXEC_ADDRESSES": address}
        with running(waiting, folder=folder, environ=environ, name="client") as client:
            until(lambda: look(address)["waitgroups"]["all"].get("running") == 1, "it runs")
            program.signal(signal.SIGTERM)
            program.says("exec server drains")
            until(lambda: look(address).get("draining"), "it drains")
            program.signal(signal.SIGTERM)
            assert program.status() == 0
            assert client.status() != 0
            assert "stopping" in client.err


def test_over_tls_with_a_token(folder: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate, and is not here")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-keyout", "key.pem", "-out", "cert.pem", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"],
        cwd=folder, check=True, capture_output=True,
    )  # fmt: skip
    tls = f'tls_cert = "{folder}/cert.pem"\ntls_key = "{folder}/key.pem"'
    with exec_server(folder, tls, ROTA_EXEC_TOKEN="s3cret") as (program, address):
        assert address.startswith("https://127.0.0.1:")
        secret = {"ROTA_EXEC_ADDRESSES": address, "ROTA_EXEC_CA": f"{folder}/cert.pem", "ROTA_EXEC_TOKEN": "s3cret"}
        assert rota(folder, "exec", "cat", **secret).status == 0
        wrong = rota(folder, "exec", "--wait", "1", "cat", **{**secret, "ROTA_EXEC_TOKEN": "guess"})
        assert wrong.status != 0
        context = ssl.create_default_context(cafile=f"{folder}/cert.pem")
        with urllib.request.urlopen(f"{address}/readyz", context=context, timeout=30) as answer:
            assert answer.status == 200
        assert "s3cret" not in program.out + program.err


def test_sighup_reads_the_file_again_and_what_runs_goes_on(folder: Path) -> None:
    with exec_server(folder) as (program, address):
        hold = running([*ROTA, "exec", "hold"], folder=folder, name="client",
                       environ={**PATHS, "ROTA_EXEC_ADDRESSES": address})  # fmt: skip
        with hold as client:
            until(lambda: look(address)["waitgroups"]["all"].get("running") == 1, "it runs")
            text = CONFIG.format(server="drain_s = 0")
            less = text.replace("processes = 2", "processes = 1").replace("services.cat", "services.copy")
            (folder / "exec.toml").write_text(less)
            assert "copy" not in look(address)["services"], "a file that changes is no word to read it"
            program.signal(signal.SIGHUP)
            program.says("configuration read again")
            seen = look(address)
            assert (seen["waitgroups"]["all"]["processes"], seen["waitgroups"]["all"]["running"]) == (1, 1)
            assert sorted(seen["services"]) == ["copy", "hold"]

            (folder / "exec.toml").write_text(less.replace("[server]", "[server]\nsped = 1"))
            program.signal(signal.SIGHUP)
            assert "server.sped: this is no setting" in program.says("the one before stands")
            (folder / "exec.toml").write_text(less.replace("[server]", '[server]\nscratch = "elsewhere"'))
            program.signal(signal.SIGHUP)
            program.says("server.scratch is not what it was at the start: only a restart can change it")
            assert sorted(look(address)["services"]) == ["copy", "hold"]

            (folder / "exec.toml").write_text(text.replace('["sleep"', '["no-such-tool"'))
            program.signal(signal.SIGHUP)
            program.says("configuration read again", count=2)
            assert "no-such-tool" in program.says("a program is not on this machine")
            done = rota(folder, "exec", "cat", ROTA_EXEC_ADDRESSES=address)
            assert done.status == 0, done.err
            assert client.popen.poll() is None, client.err
            program.signal(signal.SIGTERM)
            assert program.status() == 0
            assert "stopping" in client.err or client.status() != 0
