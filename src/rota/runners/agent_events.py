"""What happens to a runner, and what it says to do. Pure data.

Events come from the socket (the link), from what runs in sessions (the workshop), from the person and the operating
system (the shell) and from the clock. `Agent.handle` takes one and gives commands, which are carried out in their
order. A link's number is never used again; what comes from an older link than the newest is ignored.
"""

from dataclasses import dataclass

from rota.runners.frames import Frame
from rota.runners.messages import Assign, Capabilities, Held, JsonObject, OpError, Part


@dataclass(frozen=True, slots=True)
class Answer:
    """How an op ended: with a result or an error, as it travels."""

    result: JsonObject | None = None
    error: OpError | None = None


# Events. Each says who sends it.


@dataclass(frozen=True, slots=True)
class Start:
    """Shell: begin. First of all, once."""


@dataclass(frozen=True, slots=True)
class Connected:
    """Link: answers `Dial`: the websocket stands and its subprotocol is agreed."""

    link: int


@dataclass(frozen=True, slots=True)
class DialFailed:
    """Link: answers `Dial`: no connection; why, in words for people, naming what failed (name, proxy, TLS, …).

    `retry_after_s` is a server's Retry-After, if it sent one."""

    link: int
    reason: str
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class Received:
    """Link: a frame that could be read. One that is no good is logged by the shell and told as `Heard`."""

    link: int
    frame: Frame


@dataclass(frozen=True, slots=True)
class Heard:
    """Link: bytes came in, though no whole frame yet. Say it once a second at most."""

    link: int


@dataclass(frozen=True, slots=True)
class Dropped:
    """Link: the connection is gone, whoever closed it. `code` is the close code, 1006 if none came."""

    link: int
    code: int
    reason: str


@dataclass(frozen=True, slots=True)
class OpEnded:
    """Workshop: answers `RunOp`, once, also when it was stopped."""

    job_id: str
    epoch: int
    op_id: str
    answer: Answer


@dataclass(frozen=True, slots=True)
class OpMoved:
    """Workshop: an op made progress; as often as it likes, the agent sends one a second."""

    job_id: str
    epoch: int
    op_id: str
    stage: str
    percent: float | None = None
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class Recalled:
    """Workshop: answers `Recall`; None: it could not be read."""

    job_id: str
    epoch: int
    op_id: str
    answer: Answer | None


@dataclass(frozen=True, slots=True)
class SessionBroke:
    """Workshop: a session cannot go on (no folder, no container): its code from the op codes, and why."""

    job_id: str
    epoch: int
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class SessionEnded:
    """Workshop: answers `EndSession`: none of its processes lives and its folder is gone."""

    job_id: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Changed:
    """Shell: what the runner can do is another: the disk fell below its floor (no job types), ffmpeg went away."""

    capabilities: Capabilities


@dataclass(frozen=True, slots=True)
class Paused:
    """Shell: the person wants no new jobs, or again some."""

    paused: bool


@dataclass(frozen=True, slots=True)
class Drain:
    """Shell: SIGTERM or Ctrl-C: take no new jobs, then say goodbye and end.

    `deadline_s`: how long what runs may go on; 0: sessions are not waited for, which is what a pool worker does; None:
    for as long as it takes. A later one with a shorter deadline counts."""

    reason: str
    deadline_s: float | None


@dataclass(frozen=True, slots=True)
class Tick:
    """Clock: the time of `next_at` has come."""


Event = (
    Start
    | Connected
    | DialFailed
    | Received
    | Heard
    | Dropped
    | OpEnded
    | OpMoved
    | Recalled
    | SessionBroke
    | SessionEnded
    | Changed
    | Paused
    | Drain
    | Tick
)


# Commands. Each says who carries it out.


@dataclass(frozen=True, slots=True)
class Dial:
    """Link: connect. `Connected` or `DialFailed` follows, within the dial's own timeout."""

    link: int


@dataclass(frozen=True, slots=True)
class SendHello:
    """Link: make and send the hello: the time now plus `clock_offset_s`, a fresh nonce, the signature, and these."""

    link: int
    frame_id: str
    capabilities: Capabilities
    running: tuple[Held, ...]
    clock_offset_s: float


@dataclass(frozen=True, slots=True)
class Send:
    """Link: this frame."""

    link: int
    frame: Frame


@dataclass(frozen=True, slots=True)
class Hang:
    """Link: close it after what was sent, or, if `at_once`, without waiting for anything. `Dropped` may follow."""

    link: int
    code: int
    reason: str
    at_once: bool = False


@dataclass(frozen=True, slots=True)
class OpenSession:
    """Workshop: make a session for this job: an empty folder of its own. Ops may follow at once; they wait for it."""

    job_id: str
    assign: Assign


@dataclass(frozen=True, slots=True)
class RunOp:
    """Workshop: carry this op out, within its time. `OpEnded` follows. `args` is the struct of `ops.OPS` for this job
    type; `close` never comes here, it is an `EndSession`."""

    job_id: str
    epoch: int
    job_type: str
    op_id: str
    op: str
    args: Part
    timeout_s: float


@dataclass(frozen=True, slots=True)
class KeepAnswer:
    """Workshop: keep this for a repeat of the op; large ones on disk, out of reach of the session's programs."""

    job_id: str
    epoch: int
    op_id: str
    answer: Answer


@dataclass(frozen=True, slots=True)
class ForgetAnswer:
    """Workshop: it has aged out."""

    job_id: str
    epoch: int
    op_id: str


@dataclass(frozen=True, slots=True)
class Recall:
    """Workshop: what was kept of this op? `Recalled` follows."""

    job_id: str
    epoch: int
    op_id: str


@dataclass(frozen=True, slots=True)
class EndSession:
    """Workshop: end all that runs in it, within the grace, remove its folder and what was kept. `SessionEnded` follows,
    always. Comes once for each session."""

    job_id: str
    epoch: int
    grace_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class Tell:
    """Shell: something that the person at the machine should read. `event` is its name in the log."""

    event: str
    text: str
    urgent: bool = False


@dataclass(frozen=True, slots=True)
class Exit:
    """Shell: everything is over; end with this status."""

    status: int


Command = (
    Dial | SendHello | Send | Hang | OpenSession | RunOp | KeepAnswer | ForgetAnswer | Recall | EndSession | Tell | Exit
)
