"""Thousands of runners in one event loop, each a connection that speaks what the protocol's page asks for and no more.

Every other one is a desktop, with a signature of its own for each hello; the others are the pool's. Each takes one job,
accepts it and keeps it. A runner that loses its connection dials again with full jitter, as Rota's agent does, and
says in its hello what it still holds.
"""

import asyncio
import base64
import os
import time
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any, Final

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bench.runners.wire import Wire
from rota.runners.clocks import stamp
from rota.runners.codes import CloseCode
from rota.runners.dial import redial_wait_s
from rota.runners.frames import SUBPROTOCOL
from rota.runners.handshake import encoded, signed_text
from rota.runners.messages import HEARTBEAT_S

WHEEL: Final = 100
"""Parts into which the time between two heartbeats is cut; each runner beats in one of them."""
LEASE_S: Final = 45.0
CAPABILITIES: Final = {
    "protocolVersion": "1.0", "agentVersion": "1.0.0", "os": "linux", "arch": "amd64", "slots": 1,
    "container": "none", "runtimeImageDigest": None, "ffmpegVersion": "8.0", "fontsetVersion": "1",
    "jobTypes": ["video.compile"], "maxOutputBytes": 8 * 2**30,
}  # fmt: skip


class Told(msgspec.Struct, rename="camel"):
    """What a crowd has to know.

    Attributes:
        port: of the gateway, on this machine.
        first, runners: which numbers are its own.
        key: base64 of the private key of all its desktops.
        credential: of the pool.
        beat_s: between two heartbeats.
    """

    port: int
    first: int
    runners: int
    key: str
    credential: str
    beat_s: float = float(HEARTBEAT_S)


@dataclass(slots=True)
class Facts:
    """What a crowd has seen.

    Attributes:
        connected: runners that are welcomed now.
        welcomes: how often one was.
        held: jobs that they hold.
        beats, answered: heartbeats, and answers to them.
        refused: times that one was told to come later.
        refused_holding: those of them that held a job.
        lost: jobs that a runner held and was told to stop.
        dials: connections that were begun.
        worst_beat_s: the longest that an answer took.
        connected_at: when the last one was welcomed, by the system's clock.
        closed: how connections ended, by code, where this end did not cut them.
    """

    connected: int = 0
    welcomes: int = 0
    held: int = 0
    beats: int = 0
    answered: int = 0
    refused: int = 0
    refused_holding: int = 0
    lost: int = 0
    dials: int = 0
    worst_beat_s: float = 0.0
    connected_at: float = 0.0
    closed: dict[str, int] = field(default_factory=dict)


class Heard(msgspec.Struct, rename="camel"):
    """A frame of the gateway."""

    type: str
    payload: dict[str, Any]
    job_id: str | None = None


class Crowd:
    """The runners."""

    def __init__(self, told: Told, random: Random) -> None:
        self.told = told
        self.random = random
        self.facts = Facts()
        self.key = Ed25519PrivateKey.from_private_bytes(base64.b64decode(told.key))
        self.loop = asyncio.get_running_loop()
        self.ids = count(1)
        self.stopping = False
        self.dialling: set[asyncio.Task[Any]] = set()
        self.runners = [Runner(self, number) for number in range(told.first, told.first + told.runners)]
        self._beating = asyncio.create_task(self._beat())

    def come(self, within_s: float) -> None:
        """All dial, evenly over this time."""
        for place, runner in enumerate(self.runners):
            self.loop.call_later(within_s * place / len(self.runners), runner.dial)

    def cut(self) -> None:
        """All lines are cut at once. They dial again by themselves."""
        for runner in self.runners:
            if runner.wire is not None:
                runner.wire.cut()

    async def stop(self) -> None:
        """Ends all of it."""
        self.stopping = True
        ending = {self._beating, *self.dialling}
        for task in ending:
            task.cancel()
        await asyncio.wait(ending)
        self.cut()
        await asyncio.sleep(0)

    async def _beat(self) -> None:
        part_s = self.told.beat_s / WHEEL
        for turn in count():
            await asyncio.sleep(part_s)
            for runner in self.runners[turn % WHEEL :: WHEEL]:
                runner.beat()


class Runner:
    """One of them."""

    __slots__ = ("_crowd", "_number", "beat_at", "failures", "held", "leased_at", "retry_after_s", "welcomed", "wire")

    def __init__(self, crowd: Crowd, number: int) -> None:
        self._crowd = crowd
        self._number = number
        self.wire: Wire | None = None
        self.welcomed = False
        self.held: dict[str, dict[str, Any]] = {}
        self.leased_at = 0.0
        self.beat_at = 0.0
        self.failures = 0
        self.retry_after_s = 0.0

    def dial(self) -> None:
        """Connects, and says hello."""
        if self._crowd.stopping:
            return
        self._crowd.facts.dials += 1
        told = self._crowd.told
        self.wire = Wire(
            f"127.0.0.1:{told.port}", "/v1/connect", SUBPROTOCOL, opened=self._hello, heard=self._heard, lost=self._lost
        )
        task = self._crowd.loop.create_task(
            self._crowd.loop.create_connection(lambda: self.wire or asyncio.Protocol(), "127.0.0.1", told.port)
        )
        self._crowd.dialling.add(task)
        task.add_done_callback(self._dialled)

    def beat(self) -> None:
        """Says that it lives, and what it holds."""
        if self.welcomed:
            self.beat_at = self._crowd.loop.time()
            self._crowd.facts.beats += 1
            self._say("heartbeat", {"freeSlots": 1 - len(self.held), "running": self._running()})

    def _dialled(self, task: "asyncio.Task[Any]") -> None:
        self._crowd.dialling.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._lost(-1)

    def _hello(self) -> None:
        hello = {"protocolVersion": "1.0", "auth": self._auth(), "capabilities": CAPABILITIES}
        if self.held:
            hello["running"] = self._running()
        self._say("hello", hello)

    def _auth(self) -> dict[str, Any]:
        if self._number % 2:
            return {"kind": "pool", "credential": self._crowd.told.credential, "workerName": f"worker-{self._number}"}
        ts, nonce, device_id = stamp(time.time()), encoded(os.urandom(16)), f"device-{self._number}"
        text = signed_text(device_id=device_id, ts=ts, nonce=nonce, host="127.0.0.1")
        sig = encoded(self._crowd.key.sign(text))
        return {"kind": "device", "deviceId": device_id, "ts": ts, "nonce": nonce, "sig": sig}

    def _running(self) -> list[dict[str, Any]]:
        return [{"jobId": job_id, "leaseEpoch": proof["leaseEpoch"]} for job_id, proof in self.held.items()]

    def _say(self, kind: str, payload: dict[str, Any], **envelope: Any) -> None:
        if self.wire is not None:
            said = {"v": 1, "type": kind, "id": f"{self._number}-{next(self._crowd.ids)}", "payload": payload}
            self.wire.send(msgspec.json.encode(said | envelope))

    def _heard(self, text: bytes) -> None:
        frame = msgspec.json.decode(text, type=Heard)
        payload, facts, now = frame.payload, self._crowd.facts, self._crowd.loop.time()
        match frame.type:
            case "welcome" | "hello":  # bare websockets give the hello back
                self.welcomed, self.failures, self.leased_at = True, 0, now
                facts.connected += 1
                facts.welcomes += 1
                facts.connected_at = time.time()
                if frame.type == "welcome":
                    self._say("ready", {"freeSlots": 1 - len(self.held)})
            case "assign":
                proof = {"leaseEpoch": payload["leaseEpoch"], "jobToken": payload["jobToken"]}
                self.held[frame.job_id or ""] = proof
                self.leased_at = now
                facts.held += 1
                self._say("accept", proof, jobId=frame.job_id)
            case "heartbeat":
                facts.answered += 1
                facts.worst_beat_s = max(facts.worst_beat_s, now - self.beat_at)
                self.leased_at = self.beat_at
                for lease in payload.get("leases", ()):
                    if not lease["ok"]:
                        self._give_up(lease["jobId"])
            case "cancel":
                self._give_up(frame.job_id or "")
            case "bye":
                self.retry_after_s = float(payload.get("retryAfterSec") or 0)

    def _give_up(self, job_id: str) -> None:
        if self.held.pop(job_id, None) is not None:
            self._crowd.facts.lost += 1
            self._crowd.facts.held -= 1

    def _lost(self, code: int) -> None:
        crowd, facts = self._crowd, self._crowd.facts
        facts.connected -= self.welcomed
        facts.refused += code == CloseCode.RATE_LIMITED
        facts.refused_holding += code == CloseCode.RATE_LIMITED and bool(self.held)
        if code:
            facts.closed[str(code)] = facts.closed.get(str(code), 0) + 1
        self.wire, self.welcomed = None, False
        if crowd.stopping:
            return
        left_s = self.leased_at + LEASE_S - crowd.loop.time() if self.held else None
        wait_s = redial_wait_s(
            crowd.random, self.failures, retry_after_s=self.retry_after_s, lease_left_s=left_s
        )  # fmt: skip
        self.failures, self.retry_after_s = self.failures + 1, 0.0
        crowd.loop.call_later(wait_s, self.dial)
