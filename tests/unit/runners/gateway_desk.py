"""A gateway without sockets and database, for tests of its rules: its clock, and short ways to say what happens."""

from dataclasses import replace
from random import Random
from typing import Any

import msgspec

from rota.runners import gateway_events as events
from rota.runners import messages
from rota.runners.frames import Frame
from rota.runners.gateway import Gateway
from rota.runners.gateway_admission import Rules
from rota.runners.gateway_events import Identity, Job, Lease
from rota.runners.messages import Held, Limits, Requires
from rota.runners.token import TokenKeys

WALL = 1_800_000_000.0
KEYS = TokenKeys([b"k" * 32])
JOB, OTHER = "0197c7a0-0000-7000-8000-0000000000a1", "0197c7a0-0000-7000-8000-0000000000a2"
SESSION = "0197c7a0-0000-7000-8000-0000000000c1"
POOL = Identity("worker-1", "CloudPool", None)
DESKTOP = Identity("device-1", "Desktop", "org-1")
CAPABILITIES = messages.Capabilities(
    protocol_version="1.0", agent_version="1.2.0", os="linux", arch="amd64", slots=2, container="none",
    runtime_image_digest=None, ffmpeg_version="8.0", fontset_version="1", job_types=("video.compile",),
    max_output_bytes=1000,
)  # fmt: skip


def job_of(job_id: str = JOB, epoch: int = 1, **options: Any) -> Job:
    job = Job(
        Lease(job_id, epoch), SESSION[:-2] + job_id[-2:], "org-1", "CloudPool", "video.compile", 1, 600,
        Limits(max_output_bytes=1000, idle_timeout_sec=120), Requires(), {"executionId": "e"},
    )  # fmt: skip
    return replace(job, **options)


class Desk:
    """A gateway, its clock, and what it said."""

    def __init__(self, **rules: Any) -> None:
        self.core = Gateway(Rules("gateway-0", **rules), KEYS, Random(1))
        self.now = 0.0
        self.said: list[Any] = []

    def __call__(self, event: Any) -> list[Any]:
        self.said = self.core.handle(event, self.now, WALL + self.now)
        return self.said

    def hear(self, message: Any, *, job_id: str | None = None, session_id: str | None = None, at: int = 1) -> list[Any]:
        return self(events.Received(at, Frame("m", message, job_id, session_id)))

    def wait(self, seconds: float) -> list[Any]:
        """Lets time pass, with the ticks that are asked for."""
        until, said = self.now + seconds, []
        while (at := self.core.next_at()) is not None and at <= until:
            self.now = max(self.now, at)
            said += self(events.Tick())
        self.now, self.said = until, said
        return said

    def hello(self, at: int = 1, *, running: tuple[Held, ...] = (), **changes: Any) -> list[Any]:
        self(events.Opened(at, "gateway.invalid"))
        auth = messages.PoolAuth(credential="secret", worker_name="worker-1")
        capabilities = msgspec.structs.replace(CAPABILITIES, **changes)
        return self.hear(
            messages.Hello(protocol_version="1.0", auth=auth, capabilities=capabilities, running=running or None), at=at
        )

    def connect(self, at: int = 1, identity: Identity = POOL, **changes: Any) -> list[Any]:
        self.hello(at, **changes)
        return self(events.Verified(at, identity))

    def deal(self, job: Job | None = None, at: int = 1) -> str:
        """One job, offered; returns its token."""
        self.hear(messages.Ready(free_slots=1), at=at)
        said = self(events.Claimed(at, (job or job_of(),)))
        return str(messages_of(said)[0].job_token)

    def run(self, job: Job | None = None) -> dict[str, Any]:
        """One job, accepted; returns what its messages carry."""
        token = self.deal(job)
        proof = {"lease_epoch": 1, "job_token": token}
        self.hear(messages.Accept(**proof), job_id=JOB)
        return proof

    def ask(self, ask: int = 1, op_id: str | None = "op-1", op: str = "stat", timeout_s: int | None = 30) -> list[Any]:
        return self(events.OpAsked(ask, SESSION[:-2] + "a1", op_id, op, {"path": "a"}, timeout_s))

    def answer(self, proof: dict[str, Any], op_id: str = "op-1", **options: Any) -> list[Any]:
        said = {"ok": True, "result": {"x": 1}, **options}
        return self.hear(messages.OpResponse(op_id=op_id, **proof, **said), job_id=JOB, session_id=SESSION[:-2] + "a1")


def messages_of(said: list[Any]) -> list[Any]:
    return [command.frame.message for command in said if isinstance(command, events.Send)]


def of(kind: type, said: list[Any]) -> list[Any]:
    return [command for command in said if isinstance(command, kind)]


def closes(said: list[Any]) -> list[int]:
    return [int(command.code) for command in of(events.Close, said)]
