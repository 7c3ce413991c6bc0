"""nginx and HAProxy in front of exec servers or gateways: the one text of their configuration, and one of them as a
process.

The guides show these texts, the demo and the tests run them. Both deal connections in turn, keep a quiet websocket open
for longer than pings are apart, and pass over a server that does not answer.
"""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final, Literal

from rota.errors import RotaError

Name = Literal["nginx", "haproxy"]
NAMES: Final[tuple[Name, ...]] = ("nginx", "haproxy")
Kind = Literal["exec_servers", "gateways"]
"""What stands behind a balancer, as its configuration names it."""
IDLE_S: Final = 60
"""How long a balancer lets a connection be quiet. Pings of either side come every 10 seconds, heartbeats every 15."""
START_S: Final = 30.0
PORTS: Final = (15_000, 32_000)
"""Below the range from which a system takes the ports of outgoing connections: what is free here stays free."""

NGINX: Final = """\
events { worker_connections 4096; }

http {
    upstream KIND {
        zone KIND 64k;          # all worker processes deal in one turn
SERVERS    }
    server {
        listen LISTEN;
TLS        location / {
            proxy_pass http://KIND;
            proxy_http_version 1.1;
            proxy_set_header Upgrade $http_upgrade;
            proxy_set_header Connection "upgrade";
OWN            proxy_read_timeout IDLEs;
            proxy_send_timeout IDLEs;
        }
    }
}
"""
NGINX_SERVER: Final = "        server SERVER fail_timeout=2s;\n"
NGINX_TLS: Final = "        ssl_certificate CERT;\n        ssl_certificate_key KEY;\n"
NGINX_GATEWAYS: Final = """\
            proxy_set_header Host $http_host;        # a device signs the name that it dials
            client_max_body_size 5g;                 # outputs that go to a folder of objects
            proxy_request_buffering off;             # as they come, and not when they are whole
"""
HAPROXY: Final = """\
defaults
    mode http
    timeout connect 5s
    timeout client IDLEs
    timeout server IDLEs
    timeout tunnel IDLEs

frontend SHORT
    bind LISTEN
    default_backend KIND

backend KIND
    balance roundrobin
    option httpchk GET /readyz
SERVERS"""
HAPROXY_SERVER: Final = "    server SHORTNUMBER SERVER check inter 2s fall 2 rise 1\n"


class BalancerError(RotaError):
    """A balancer that is not installed, or did not start; the message has its reason."""


@dataclass(frozen=True, slots=True)
class Front:
    """What a balancer does.

    Attributes:
        listen: where it is reached, as `127.0.0.1:8750` or a port alone.
        servers: what stands behind it, as `host:port`.
        idle_s: how long it lets a connection be quiet.
        tls: files of a certificate and its key; for HAProxy one file with both. None: no TLS.
        kind: what stands behind it.
    """

    listen: str
    servers: Sequence[str]
    idle_s: int = IDLE_S
    tls: tuple[str, str] | None = None
    kind: Kind = "exec_servers"


def nginx_text(front: Front) -> str:
    """An nginx.conf."""
    servers = "".join(NGINX_SERVER.replace("SERVER", server) for server in front.servers)
    tls = ""
    if front.tls is not None:
        tls = NGINX_TLS.replace("CERT", front.tls[0]).replace("KEY", front.tls[1])
    listen = front.listen if front.tls is None else f"{front.listen} ssl"
    own = NGINX_GATEWAYS if front.kind == "gateways" else ""
    return _filled(NGINX, SERVERS=servers, LISTEN=listen, TLS=tls, IDLE=str(front.idle_s), KIND=front.kind, OWN=own)


def haproxy_text(front: Front) -> str:
    """A haproxy.cfg."""
    servers = "".join(
        HAPROXY_SERVER.replace("NUMBER", str(number)).replace("SERVER", server)
        for number, server in enumerate(front.servers, start=1)
    )
    listen = front.listen if ":" in front.listen else f":{front.listen}"
    tls = "" if front.tls is None else f" ssl crt {front.tls[0]}"
    short = "exec" if front.kind == "exec_servers" else "gateway"
    return _filled(HAPROXY, SERVERS=servers, LISTEN=listen + tls, IDLE=str(front.idle_s), KIND=front.kind, SHORT=short)


def _filled(text: str, **holes: str) -> str:
    for hole, value in holes.items():
        text = text.replace(hole, value)
    return text


def find(name: Name) -> str | None:
    """The program, or None. Debian has it where only root looks."""
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")


def free_port() -> int:
    """A port of loopback that nothing listens on, for a program that cannot be told to choose one itself."""
    random = Random()  # noqa: S311 - any will do
    for _ in range(1000):
        port = random.randint(*PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise BalancerError(f"No port from {PORTS[0]} to {PORTS[1]} is free on loopback.")


class Balancer:
    """A balancer on loopback that ends with the block.

    Args:
        name: which.
        folder: where its files go.
        servers: what stands behind it, as `host:port`; one that is not there yet may come later.
        idle_s: how long it lets a connection be quiet.
        tls: as in `Front`.
        kind: as in `Front`.
        host: the address that it listens on.

    Attributes:
        port: where it listens.
    """

    def __init__(
        self,
        name: Name,
        folder: Path,
        servers: Sequence[str],
        *,
        idle_s: int = IDLE_S,
        tls: tuple[str, str] | None = None,
        kind: Kind = "exec_servers",
        host: str = "127.0.0.1",
    ) -> None:
        self.name = name
        self.port = free_port()
        self._folder = folder
        self._front = Front(f"{host}:{self.port}", servers, idle_s, tls, kind)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Balancer":
        program = find(self.name)
        if program is None:
            raise BalancerError(f"{self.name} is not installed.")
        self._folder.mkdir(parents=True, exist_ok=True)
        log = self._folder / f"{self.name}.log"
        with log.open("wb") as file:
            self._process = subprocess.Popen(  # noqa: S603 - a program that was found, and files of ours
                self._argv(program), cwd=self._folder, stdin=subprocess.DEVNULL, stdout=file, stderr=file
            )
        give_up_at = time.monotonic() + START_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > give_up_at:
                self.__exit__()
                raise BalancerError(f"{self.name} did not start: {log.read_text(errors='replace').strip()[-500:]}")
            time.sleep(0.02)
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None and self._process.poll() is None:
            # Of nginx the quick end; HAProxy knows no other signal.
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def _argv(self, program: str) -> list[str]:
        if self.name == "haproxy":
            config = self._folder / "haproxy.cfg"
            config.write_text(haproxy_text(self._front), encoding="utf-8")
            return [program, "-db", "-f", str(config)]
        config = self._folder / "nginx.conf"
        # Only what a folder of one's own needs, and nothing about balancing.
        folder = self._folder
        temporary = "".join(
            f"{kind}_temp_path {folder}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        own = f"daemon off; master_process on; pid {folder}/nginx.pid; error_log stderr;\n"
        if os.geteuid() == 0:
            own += "user root;\n"  # its workers read a folder that is this process's alone
        text = nginx_text(self._front).replace("http {\n", f"http {{\naccess_log off;\n{temporary}")
        config.write_text(own + text, encoding="utf-8")
        return [program, "-p", str(folder), "-e", "stderr", "-c", str(config)]

    def _answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
        except OSError:
            return False
        return True
