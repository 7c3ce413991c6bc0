"""exec.toml: what an exec server offers, read once and checked whole. Pure: the caller reads the file.

Each mistake is refused with its place, such as `services.transcode.args.height`, and with what would be right. Words
that Rota does not know are refused too, because a limit with a typing error is no limit.
"""

import difflib
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeVar

from rota import settings
from rota.errors import SettingsError
from rota.slots.service import DEFAULT_WAITGROUP, Limits, Service, Waitgroup
from rota.slots.template import NAME, REST, SCRATCH, ArgumentType, Template, Word, argument_type, parse_word

T = TypeVar("T")

SERVICES_MAX: Final = 1000
SLOTS_MAX: Final = 10_000
DAY_S: Final = 86_400.0
TIB: Final = 1024**4
_UNITS: Final = {"": 1, "KIB": 1024, "MIB": 1024**2, "GIB": 1024**3, "KB": 1000, "MB": 1000**2, "GB": 1000**3}
_SIZE: Final = re.compile(r"\s*(\d{1,15})\s*([A-Za-z]*)\s*")


@dataclass(frozen=True, slots=True)
class ServerSection:
    """How the exec server itself behaves.

    Attributes:
        host, port: where it listens. Off loopback it needs a token.
        token: what clients have to show.
        tls_cert, tls_key: files of a certificate and its key.
        scratch: the folder under which each command gets its own; None: one in the system's temp folder.
        state: the folder where run times and the record of running commands outlive a restart; None: nothing does.
        drain_s: how long running commands may go on after SIGTERM.
        offer_timeout_s: how long a client may take to answer an offer.
        frame_bytes_max: the longest frame that is read.
        fast_reserve: whether short services keep slots that long ones may not take.
        fair_by: who takes turns within a priority: connections, or tenants.
        weights: how many grants in a round a tenant gets; 1 for who is not listed. Only where tenants take turns.
        weight_max: the most that a connection may ask for where connections take turns; 1: all are alike.
        floor: one grant in this many goes to the priority that has waited longest; None: priority is strict.
        pipe_hosts: the hosts that streams may come from and go to; empty: whatever a client names.
    """

    host: str = "127.0.0.1"
    port: int = 8750
    token: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    scratch: str | None = None
    state: str | None = None
    drain_s: float = 30.0
    offer_timeout_s: float = 10.0
    frame_bytes_max: int = 1024 * 1024
    fast_reserve: bool = True
    fair_by: Literal["connection", "tenant"] = "connection"
    weights: Mapping[str, int] = field(default_factory=dict)
    weight_max: int = 1
    floor: int | None = None
    pipe_hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ExecConfig:
    """All of exec.toml. Without declared waitgroups there is one, `default`, with a slot for each CPU."""

    server: ServerSection
    waitgroups: Mapping[str, Waitgroup]
    services: Mapping[str, Service]


def read_exec_config(text: str, *, source: str = "exec.toml", cpus: int = 1) -> ExecConfig:
    """Reads the text of an exec.toml.

    Args:
        text: the file.
        source: its name, for messages.
        cpus: slots of the default waitgroup where none is declared.

    Raises: SettingsError that names the place and what would be right.
    """
    try:
        root = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{source} is no TOML: {error}.") from None
    try:
        return _config(_Table(root, ""), cpus)
    except _Wrong as error:
        raise SettingsError(f"{source}: {error}.") from None


class _Wrong(Exception):
    def __init__(self, place: str, message: str) -> None:
        super().__init__(f"{place}: {message}" if place else message)


class _Table:
    """One table of the file; `done` refuses what nobody took."""

    def __init__(self, values: Any, place: str) -> None:
        if not isinstance(values, dict):
            raise _Wrong(place, "give a table")
        self.values: dict[str, Any] = values
        self.place = place
        self._known: list[str] = []

    def at(self, key: str) -> str:
        return f"{self.place}.{key}" if self.place else key

    def take(self, key: str, check: Callable[[Any], T], default: T) -> T:
        self._known.append(key)
        if key not in self.values:
            return default
        try:
            return check(self.values[key])
        except ValueError as error:
            raise _Wrong(self.at(key), str(error)) from None

    def table(self, key: str) -> "_Table":
        self._known.append(key)
        return _Table(self.values.get(key, {}), self.at(key))

    def done(self) -> None:
        for key in self.values:
            if key not in self._known:
                near = difflib.get_close_matches(key, self._known, 1)
                hint = f"did you mean {near[0]}" if near else f"known here are {', '.join(self._known)}"
                raise _Wrong(self.at(key), f"this is no setting; {hint}")


def _config(root: _Table, cpus: int) -> ExecConfig:
    server = _server(root.table("server"))
    groups, services = root.table("waitgroups"), root.table("services")
    root.done()
    waitgroups = {name: _waitgroup(name, groups) for name in groups.values}
    if not waitgroups:
        waitgroups = {DEFAULT_WAITGROUP: Waitgroup(DEFAULT_WAITGROUP, max(1, cpus))}
    if not services.values:
        raise _Wrong("services", "no service is declared: an exec server without any has nothing to run")
    if len(services.values) > SERVICES_MAX:
        raise _Wrong("services", f"declare at most {SERVICES_MAX:,}")
    return ExecConfig(server, waitgroups, {name: _service(name, services, waitgroups) for name in services.values})


def _server(table: _Table) -> ServerSection:
    default = ServerSection()
    host, port = table.take("listen", _address, (default.host, default.port))
    section = ServerSection(
        host=host,
        port=port,
        token=table.take("token", settings.token, None),
        tls_cert=table.take("tls_cert", _text, None),
        tls_key=table.take("tls_key", _text, None),
        scratch=table.take("scratch", _text, None),
        state=table.take("state", _text, None),
        drain_s=table.take("drain_s", _seconds(0, DAY_S), default.drain_s),
        offer_timeout_s=table.take("offer_timeout_s", _seconds(0.05, 600), default.offer_timeout_s),
        frame_bytes_max=table.take("frame_bytes_max", _bytes(64 * 1024), default.frame_bytes_max),
        fast_reserve=table.take("fast_reserve", _flag, default.fast_reserve),
        fair_by=table.take("fair_by", _fair_by, default.fair_by),
        weights=_weights(table.table("weights")),
        weight_max=table.take("weight_max", _whole(1, 1000), default.weight_max),
        floor=table.take("floor", _whole(2, 1000), None),
        pipe_hosts=table.take("pipe_hosts", _texts, ()),
    )
    table.done()
    if (section.tls_cert is None) != (section.tls_key is None):
        raise _Wrong(table.place, "tls_cert and tls_key belong together: give both or none")
    if section.weights and section.fair_by != "tenant":
        raise _Wrong(table.at("weights"), 'tenants have weights only where they take turns: add fair_by = "tenant"')
    return section


def _weights(table: _Table) -> dict[str, int]:
    return {name: table.take(name, _whole(1, 1000), 1) for name in table.values}


def _waitgroup(name: str, groups: _Table) -> Waitgroup:
    table = groups.table(name)
    if not NAME.fullmatch(name.replace("-", "_")):
        raise _Wrong(table.place, "a name is of letters, digits, _ and -, at most 64, and does not begin with a digit")
    processes = table.take("processes", _whole(1, SLOTS_MAX), 0)
    table.done()
    if not processes:
        raise _Wrong(table.at("processes"), "say how many commands may run at once, from 1")
    return Waitgroup(name, processes)


def _service(name: str, services: _Table, waitgroups: Mapping[str, Waitgroup]) -> Service:
    table = services.table(name)
    if not NAME.fullmatch(name.replace("-", "_")):
        raise _Wrong(table.place, "a name is of letters, digits, _ and -, at most 64, and does not begin with a digit")
    default = Limits()
    service = Service(
        name=name,
        template=_template(table),
        waitgroup=table.take("waitgroup", _text, DEFAULT_WAITGROUP),
        limits=Limits(
            timeout_s=table.take("timeout_s", _seconds(0.05, 30 * DAY_S), default.timeout_s),
            stall_s=table.take("stall_s", _seconds_or_none(0.2, 30 * DAY_S), default.stall_s),
            memory_bytes_max=table.take("memory_max", _bytes(1024 * 1024), None),
            stdout_bytes_max=table.take("stdout_max", _bytes(0), default.stdout_bytes_max),
            grace_s=table.take("grace_s", _seconds(0, 600), default.grace_s),
        ),
        env=_env(table.table("env")),
        env_types=_types(table.table("accepts_env")),
    )
    table.done()
    if service.waitgroup not in waitgroups:
        known = ", ".join(waitgroups)
        raise _Wrong(table.at("waitgroup"), f"there is no waitgroup '{service.waitgroup}': use one of {known}")
    if REST in service.env_types:
        raise _Wrong(table.at("accepts_env"), "a variable cannot be called *")
    return service


def _template(table: _Table) -> Template:
    nothing: tuple[Word, ...] = ()
    words = table.take("command", _command, nothing)
    types = _types(table.table("args"))
    place = table.at("command")
    if not words:
        raise _Wrong(place, 'name the program and its arguments, as ["program", "--option", "{name}"]')
    if any(piece.hole is not None for piece in words[0]):
        raise _Wrong(place, "the program itself cannot be a hole: a caller must not choose what runs")
    used = {piece.hole for word in words for piece in word if piece.hole is not None} - {SCRATCH}
    if SCRATCH in types:
        raise _Wrong(table.at("args.scratch"), "{scratch} is the command's folder; call the argument by another name")
    for hole in sorted(used - set(types)):
        raise _Wrong(place, f'{{{hole}}} has no type: declare it, as args = {{ {_quoted(hole)} = "word" }}')
    for name in types:
        if name not in used:
            raise _Wrong(table.at(f"args.{name}"), f"the command does not use {{{name}}}")
    whole = [word for word in words if any(piece.hole == REST for piece in word)]
    if whole and (len(whole) > 1 or len(whole[0]) > 1 or whole[0][0].literal or len(types) > 1):
        raise _Wrong(place, "{*} stands once, as a word of its own, and alone among the arguments")
    return Template(words, types)


def _quoted(hole: str) -> str:
    return f'"{hole}"' if hole == REST else hole


def _types(table: _Table) -> dict[str, ArgumentType]:
    found = {}
    for name in table.values:
        if name != REST and not NAME.fullmatch(name):
            raise _Wrong(table.at(name), "a name is of letters, digits and _, and does not begin with a digit")
        found[name] = table.take(name, argument_type, ArgumentType("word"))
    return found


def _env(table: _Table) -> dict[str, Word]:
    found: dict[str, Word] = {}
    nothing: Word = ()
    for name in table.values:
        if not NAME.fullmatch(name):
            raise _Wrong(table.at(name), "a variable's name is of letters, digits and _")
        word = table.take(name, parse_word, nothing)
        if any(piece.hole not in (None, SCRATCH) for piece in word):
            raise _Wrong(table.at(name), "only {scratch} can stand in a variable; let callers set it by accepts_env")
        found[name] = word
    return found


def _command(value: Any) -> tuple[Word, ...]:
    if not isinstance(value, list) or not value:
        raise ValueError("give a list of words; there is no shell that would split a text")
    words = tuple(parse_word(word) for word in value)
    if not value[0]:
        raise ValueError("the program has no name")
    return words


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("give text")
    return value


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise ValueError("give a list of texts")
    return tuple(_text(item) for item in value)


def _fair_by(value: Any) -> Literal["connection", "tenant"]:
    if value == "connection":
        return "connection"
    if value == "tenant":
        return "tenant"
    raise ValueError("give connection or tenant")


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("give true or false")
    return value


def _whole(low: int, high: int) -> Callable[[Any], int]:
    def check(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ValueError(f"give a whole number from {low:,} to {high:,}")
        return value

    return check


def _seconds(low: float, high: float) -> Callable[[Any], float]:
    def check(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise ValueError(f"give seconds from {low:g} to {high:,.0f}")
        return float(value)

    return check


def _seconds_or_none(low: float, high: float) -> Callable[[Any], float | None]:
    """False switches the limit off."""

    def check(value: Any) -> float | None:
        return None if value is False else _seconds(low, high)(value)

    return check


def _bytes(low: int) -> Callable[[Any], int]:
    def check(value: Any) -> int:
        found = _SIZE.fullmatch(value) if isinstance(value, str) else None
        if found is not None and found[2].upper() in _UNITS:
            value = int(found[1]) * _UNITS[found[2].upper()]
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= TIB:
            raise ValueError(f"give bytes from {low:,}, as a number or as '512 MiB'")
        return value

    return check


def _address(value: Any) -> tuple[str, int]:
    host, colon, port = value.rpartition(":") if isinstance(value, str) else ("", "", "")
    if not colon or not host or not re.fullmatch("[0-9]{1,5}", port) or int(port) > 65_535:
        raise ValueError("give an address and a port, as '127.0.0.1:8750'")
    return host.strip("[]"), int(port)
