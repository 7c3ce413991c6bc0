"""A real pgbouncer in transaction mode before a database of the tests."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from tests.postgres_servers import unavailable


@contextmanager
def pgbouncer(dsn: str, folder: Path, *, connections: int) -> Iterator[str]:
    """Runs one for as long as the block, and gives its address.

    Args:
        dsn: the database, by its unix socket.
        folder: where its files lie; it is made.
        connections: how many it has to lend.
    """
    program = shutil.which("pgbouncer") or "/usr/sbin/pgbouncer"
    if not Path(program).exists():
        unavailable("pgbouncer", "pgbouncer is not installed")
    parts = urlsplit(dsn)
    query = parse_qs(parts.query)
    database, server_port = parts.path.lstrip("/"), query.get("port", ["5432"])[0]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder.mkdir()
    (folder / "pooler.ini").write_text(
        f"[databases]\n{database} = host={query['host'][0]} port={server_port} dbname={database} user=rota\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nauth_type = any\npool_mode = transaction\n"
        f"default_pool_size = {connections}\nmax_client_conn = 100\nunix_socket_dir =\n"
    )
    # It refuses to run as root; a user namespace makes root look like nobody to it, as for the servers of these tests.
    as_nobody = ["unshare", "--user", "--map-user=65534", "--map-group=65534", "--"] if os.geteuid() == 0 else []
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([*as_nobody, program, str(folder / "pooler.ini")], stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 20
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                assert process.poll() is None, (folder / "log").read_text()
                assert time.monotonic() < deadline, "pgbouncer does not listen"
                time.sleep(0.02)
        yield f"postgresql://rota@127.0.0.1:{port}/{database}"
    finally:
        process.terminate()
        process.wait(10)
