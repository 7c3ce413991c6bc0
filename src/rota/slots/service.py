"""A declared command: what it runs, what a caller may say to it, and the limits that end it. Pure.

A service turns a caller's job into a `Plan`, or refuses it. Nothing that a caller says can raise a limit.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from rota.errors import ArgumentsError
from rota.slots.template import ARGUMENTS_BYTES_MAX, SCRATCH, Arguments, ArgumentType, Template, Value, Word, fill_word

DEFAULT_WAITGROUP: Final = "default"
"""The group of services that name none."""
TIMEOUT_S: Final = 3600.0
STALL_S: Final = 600.0
STDOUT_BYTES_MAX: Final = 64 * 1024**3
GRACE_S: Final = 5.0
"""What holds for a service that says nothing else; docs/guide/exec-servers.md has the table."""
DATA_ROOM_BYTES: Final = 512 * 1024**2
"""How far above the ceiling the system's own limit on each process is, at least: memory that is set aside and never
touched counts there, such as the stacks of 64 threads, and no command should fail for that."""


@dataclass(frozen=True, slots=True)
class Waitgroup:
    """Slots that services share: so many commands run at once."""

    name: str
    processes: int


@dataclass(frozen=True, slots=True)
class Limits:
    """What ends a command that does not end by itself.

    Attributes:
        timeout_s: how long it may run.
        stall_s: how long it may show no progress: no byte in or out, no output on stderr, no CPU time; None: for ever.
        memory_bytes_max: of all its processes together; None: no ceiling.
        stdout_bytes_max: what it may write to stdout.
        grace_s: between SIGTERM and SIGKILL.
    """

    timeout_s: float = TIMEOUT_S
    stall_s: float | None = STALL_S
    memory_bytes_max: int | None = None
    stdout_bytes_max: int = STDOUT_BYTES_MAX
    grace_s: float = GRACE_S

    @property
    def data_bytes_max(self) -> int:
        """What the system itself lets each process of a command have, so that none gets far beyond the ceiling before
        anybody looks; 0: no such limit."""
        ceiling = self.memory_bytes_max
        return 0 if ceiling is None else ceiling + max(ceiling, DATA_ROOM_BYTES)


@dataclass(frozen=True, slots=True)
class Plan:
    """What will run: the argv and the whole environment. `paths` are files with the folder that each has to be in."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    limits: Limits
    paths: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Service:
    """One declared command.

    Attributes:
        name: what callers ask for.
        template: its command.
        waitgroup: the slots that it draws from.
        limits: what ends it.
        env: its variables; there are no others.
        env_types: variables that a caller may set, with what each may be.
    """

    name: str
    template: Template
    waitgroup: str = DEFAULT_WAITGROUP
    limits: Limits = field(default_factory=Limits)
    env: Mapping[str, Word] = field(default_factory=dict)
    env_types: Mapping[str, ArgumentType] = field(default_factory=dict)
    _fixed: Plan | None = field(init=False, default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        words = (*self.template.words, *self.env.values())
        if not self.template.types and not self.env_types and all(p.hole is None for word in words for p in word):
            # Whatever it runs is known beforehand.
            object.__setattr__(self, "_fixed", self._plan((), "", {}, None))

    @property
    def program(self) -> str:
        """What it runs: an absolute path, or a name that is looked for along the exec server's PATH."""
        return "".join(piece.literal for piece in self.template.words[0])

    def plan(
        self, args: Arguments, *, scratch: str, env: Mapping[str, Value] | None = None, timeout_s: float | None = None
    ) -> Plan:
        """What to run for one job.

        Args:
            args: by name or as a list, see `Template.fill`.
            scratch: the folder of the command.
            env: variables that the caller sets.
            timeout_s: the caller's own limit; it can only be shorter.

        Raises: ArgumentsError that names what does not fit.
        """
        if self._fixed is not None and not args and not env and timeout_s is None:
            return self._fixed
        return self._plan(args, scratch, env or {}, timeout_s)

    def _plan(self, args: Arguments, scratch: str, env: Mapping[str, Value], timeout_s: float | None) -> Plan:
        if timeout_s is not None and not timeout_s > 0:
            raise ArgumentsError(f"timeout_s is {timeout_s:g}: give more than 0 seconds, or leave it out.")
        limits = self.limits
        if timeout_s is not None and timeout_s < limits.timeout_s:
            limits = Limits(timeout_s, limits.stall_s, limits.memory_bytes_max, limits.stdout_bytes_max, limits.grace_s)
        filled = self.template.fill(args, scratch=scratch)
        return Plan(filled.argv, self._env(env, scratch), limits, filled.paths)

    def _env(self, given: Mapping[str, Value], scratch: str) -> dict[str, str]:
        env = {name: fill_word(word, {SCRATCH: scratch}) for name, word in self.env.items()}
        for name, declared in self.env_types.items():
            if declared.default is not None:
                env[name] = declared.default
        for name, value in given.items():
            if name not in self.env_types:
                known = ", ".join(self.env_types) or "none"
                raise ArgumentsError(
                    f"The variable '{name[:80]}' cannot be set for this service; it lets callers set {known}."
                )
            try:
                env[name] = self.env_types[name].text(value)
            except ArgumentsError as error:
                raise ArgumentsError(f"The variable '{name}' does not fit: {error}.") from None
        if sum(len(name) + len(value.encode()) + 2 for name, value in env.items()) > ARGUMENTS_BYTES_MAX:
            raise ArgumentsError(f"The environment is over {ARGUMENTS_BYTES_MAX:,} bytes.")
        return env
