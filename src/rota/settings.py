"""The one place where a setting enters: rota.toml, then the environment (ROTA_*), then flags; the later one wins.

"Unset" is not a value: defaults are applied last, so that a default never hides what a file says. Everything is
checked here, once, and an unknown or bad setting stops the start by its name and its source. Nothing else in Rota
reads the environment.
"""

import difflib
import hashlib
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import unquote, urlsplit

from rota.errors import SettingsError

PREFIX: Final = "ROTA_"
LIMIT_PREFIX: Final = "ROTA_LIMIT_"
LIMIT_TABLES: Final = {"limits": LIMIT_PREFIX, "fleet_limits": "ROTA_FLEET_LIMIT_"}
"""Settings that name kinds: the table in the file, and how the variables begin."""
DEV_PREFIX: Final = "ROTA_DEV_"
"""For working on Rota itself (the ./dev door and its tests); never a setting of a service."""
FILE_VARIABLE: Final = "ROTA_CONFIG"
FILE_NAME: Final = "rota.toml"


Limits = dict[str, dict[str, int]]
"""The limits that were read, by table; in each by kind or by variable."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What a service can set. The name in rota.toml is the field's; in the environment it is ROTA_ and upper case.

    Attributes:
        dsn: the database, `postgresql://…`, or `embedded:FOLDER` for a PostgreSQL run from that folder.
        schema: where Rota's tables live.
        pooler: `transaction` behind pgbouncer in transaction mode.
        job_pool_size: database connections of one worker process for claims, completions and polls, 2 to 100.
        pool_size: connections for the enqueues and look-ups of a program, 1 to 100.
        lease_s, heartbeat_s, max_tries, limit: what a kind uses that does not say otherwise.
        limits: jobs of a kind at once in one worker process, by kind (`ROTA_LIMIT_<KIND>`); 0 keeps the kind off.
        fleet_limits: jobs of a kind at once on all servers together, by kind (`ROTA_FLEET_LIMIT_<KIND>`).
        role: which kinds this server takes: `all`, or a list of roles (`api,builds` in the environment).
        roles: the kinds of a role, by role (`[roles]` in rota.toml), in place of what the code says of that role.
        poll_s: how often an idle worker looks, 0.05 to 60 seconds.
        stop_grace_s: how long a stopping worker lets its jobs go on, 0 to 3,600 seconds.
        cancel_grace_s: how long a running job that somebody cancelled may take to stop, 0 to 3,600 seconds.
        start_s: how long a worker process may take until it has looked for work, 1 to 3,600 seconds; then it is
            replaced.
        keep_days: how long ended jobs stay, 0.001 to 3,650 days.
        keep_failed_days: the same for failed jobs, which never go before the others.
        log_format: `text`, `json`, or `auto` (text on a terminal).
        log_level: debug, info, warning or error.
        metrics_port: where the parent of worker processes answers scrapes of /metrics; unset: nowhere.
        metrics_host: the address for it; one beyond this machine needs a token.
        metrics_token: what a scraper shows as `Authorization: Bearer …`.
        metrics_prefix: goes before the names of all metrics.
        ffmpeg: the ffmpeg to use, where PATH has another or none.
        exec_addresses: the exec servers, or the balancers in front of them: host:port, with commas between them.
        exec_token: the token that they want.
        exec_ca: a file with the certificates to trust for https addresses; else the system's.
        exec_wait_s: how long a call waits for a slot, 0.1 to 86,400 seconds.
        pipe_host: the name or address at which exec servers reach this process, where that is not the one that they
            see, as behind a NAT.
        pipe_port: where this process listens for them; 0 takes a free port.
        gateway_url: where engines reach the gateway's internal API, such as `http://gateway:8760`.
        gateway_ca: a file with certificates to trust for an https gateway_url and other gateways; else the system's.
        gateway_wait_s: how long a session waits for a runner, 0.1 to 86,400 seconds.
        objects: the object store: `s3://BUCKET`, or `folder:PATH` that the gateway serves.
        objects_url: its address as runners dial it; for s3 only where that is another than objects_endpoint.
        objects_endpoint: the address of an s3 store, as this program dials it.
        objects_region: the region of its bucket.
        objects_key_id: the account at an s3 store.
        objects_secret: its secret.
        gateway_host, gateway_port: where a gateway listens.
        gateway_names: the host names by which runners dial it, with commas between them; one is signed by each device.
        gateway_address: where its other replicas reach it, such as `http://10.0.0.5:8760`; else where it listens.
        gateway_cert, gateway_cert_key: files of its certificate and key, where no proxy before it ends TLS.
        gateway_token: the token of the internal API, which engines show; without it that API is off.
        gateway_key: signs job tokens, 32 characters or more, the same for all replicas; with commas, the first one
            signs and all are known.
        gateway_org_slots: jobs of one organisation in the pool at once; unset: any number.
        gateway_buffer_slots: slots of the pool beyond what waits and runs, for the scaling signal.
        gateway_min_agent: runners with an older agent get no jobs.
        gateway_hellos_per_s: how many runners a gateway lets connect in a second; those that hold jobs are counted on
            their own.
        gateway_audit_days: how long events of the audit trail stay, 1 to 36,500 days.
        runner_gateway: the gateway that a runner dials, `wss://host`.
        runner_tls: `development` lets a runner dial `ws://` beyond its own machine, too.
        runner_ca: a file with certificates to trust for gateway and object store, beside the system's.
        runner_credential: the pool's secret, for a runner of the pool.
        runner_name: what this runner is called; else the machine's name.
        runner_state: the folder for its key and its logs; else `.rota/runner` in the home folder.
        runner_scratch: the folder for its sessions; else `scratch` in the state folder.
        runner_slots: sessions at once, 1 to 64.
        runner_quota_mib: what the files of all its sessions may take together.
        runner_floor_mib: with less free disk than this it takes no work.
        runner_output_mib: the largest object that it publishes.
        runner_memory_mib: what one ffmpeg may take; else its part of three quarters of what there is.
        runner_fontset: the version of the fonts that it has for overlays.
    """

    dsn: str | None = None
    schema: str = "rota"
    pooler: Literal["none", "transaction"] = "none"
    job_pool_size: int = 6
    pool_size: int = 4
    lease_s: float = 300.0
    heartbeat_s: float = 30.0
    max_tries: int = 3
    limit: int = 10
    limits: Mapping[str, int] = field(default_factory=dict)
    fleet_limits: Mapping[str, int] = field(default_factory=dict)
    role: tuple[str, ...] = ("all",)
    roles: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    poll_s: float = 1.0
    stop_grace_s: float = 25.0
    cancel_grace_s: float = 10.0
    start_s: float = 120.0
    keep_days: float = 7.0
    keep_failed_days: float = 7.0
    log_format: Literal["auto", "text", "json"] = "auto"
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    metrics_port: int | None = None
    metrics_host: str = "127.0.0.1"
    metrics_token: str | None = None
    metrics_prefix: str = "rota"
    ffmpeg: str | None = None
    exec_addresses: str | None = None
    exec_token: str | None = None
    exec_ca: str | None = None
    exec_wait_s: float = 120.0
    pipe_host: str | None = None
    pipe_port: int = 0
    gateway_url: str | None = None
    gateway_ca: str | None = None
    gateway_wait_s: float = 120.0
    objects: str | None = None
    objects_url: str | None = None
    objects_endpoint: str | None = None
    objects_region: str = "us-east-1"
    objects_key_id: str | None = None
    objects_secret: str | None = None
    gateway_host: str = "127.0.0.1"
    gateway_port: int = 8760
    gateway_names: str | None = None
    gateway_address: str | None = None
    gateway_cert: str | None = None
    gateway_cert_key: str | None = None
    gateway_token: str | None = None
    gateway_key: str | None = None
    gateway_org_slots: int | None = None
    gateway_buffer_slots: int = 0
    gateway_min_agent: str | None = None
    gateway_hellos_per_s: float = 500.0
    gateway_audit_days: float = 365.0
    runner_gateway: str | None = None
    runner_tls: Literal["required", "development"] = "required"
    runner_ca: str | None = None
    runner_credential: str | None = None
    runner_name: str | None = None
    runner_state: str | None = None
    runner_scratch: str | None = None
    runner_slots: int = 1
    runner_quota_mib: int = 20_480
    runner_floor_mib: int = 1024
    runner_output_mib: int = 4096
    runner_memory_mib: int | None = None
    runner_fontset: str = "0"

    def require_dsn(self) -> str:
        """The database's address.

        Raises: SettingsError if none is set.
        """
        if not self.dsn:
            raise SettingsError(
                "No database is set. Set ROTA_DSN=postgresql://user@host/database "
                "(or embedded:./rota-data for a PostgreSQL of its own), or put dsn into rota.toml."
            )
        return self.dsn


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("give text")
    return value


def token(value: Any) -> str:
    """A token as it can stand in the header of a request, whichever library writes it.

    Raises: ValueError with what is wrong, for a person.
    """
    text = _text(value)
    if not re.fullmatch(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?", text):
        raise ValueError("give letters, digits and signs of ASCII: it travels in a header")
    return text


def _texts(value: Any) -> str:
    return ",".join(map(_text, value)) if isinstance(value, list) else _text(value)


def _schema(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[a-z_][a-z0-9_]{0,40}", value) or value.startswith("pg_"):
        raise ValueError("give lower-case letters, digits and _, at most 41, not beginning with pg_ or a digit")
    return value


def _whole(low: int, high: int) -> Callable[[Any], int]:
    def check(value: Any) -> int:
        if isinstance(value, str) and re.fullmatch(r"[+-]?\d{1,12}", value.strip()):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ValueError(f"give a whole number from {low} to {high:,}")
        return value

    return check


def _number(low: float, high: float) -> Callable[[Any], float]:
    def check(value: Any) -> float:
        if isinstance(value, str):
            try:
                value = float(value)
            except ValueError:
                value = None
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise ValueError(f"give a number from {low:g} to {high:,g}")
        return float(value)

    return check


def _one_of(*words: str) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        if value not in words:
            raise ValueError(f"give {', '.join(words[:-1])} or {words[-1]}")
        return str(value)

    return check


def _metric_name(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]{0,40}", value):
        raise ValueError("give letters, digits and _, at most 41, not beginning with a digit")
    return value


def _names(value: Any) -> tuple[str, ...]:
    words = value.split(",") if isinstance(value, str) else value
    if isinstance(words, list | tuple) and words and all(isinstance(word, str) and word.strip() for word in words):
        return tuple(dict.fromkeys(word.strip() for word in words))
    raise ValueError("give a name, or a list of names")


LIMIT_CHECK: Final = _whole(0, 100_000)
LIMIT_CHECKS: Final = {"limits": LIMIT_CHECK, "fleet_limits": _whole(1, 100_000)}

CHECKS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "dsn": _text,
    "schema": _schema,
    "pooler": _one_of("none", "transaction"),
    "job_pool_size": _whole(2, 100),
    "pool_size": _whole(1, 100),
    "lease_s": _number(1, 86_400),
    "heartbeat_s": _number(0.1, 43_200),
    "max_tries": _whole(1, 1000),
    "limit": LIMIT_CHECK,
    "role": _names,
    "poll_s": _number(0.05, 60),
    "stop_grace_s": _number(0, 3600),
    "cancel_grace_s": _number(0, 3600),
    "start_s": _number(1, 3600),
    "keep_days": _number(0.001, 3650),
    "keep_failed_days": _number(0.001, 3650),
    "log_format": _one_of("auto", "text", "json"),
    "log_level": _one_of("debug", "info", "warning", "error"),
    "metrics_port": _whole(0, 65_535),
    "metrics_host": _text,
    "metrics_token": token,
    "metrics_prefix": _metric_name,
    "ffmpeg": _text,
    "exec_addresses": _texts,
    "exec_token": token,
    "exec_ca": _text,
    "exec_wait_s": _number(0.1, 86_400),
    "pipe_host": _text,
    "pipe_port": _whole(0, 65_535),
    "gateway_url": _text,
    "gateway_ca": _text,
    "gateway_wait_s": _number(0.1, 86_400),
    "objects": _text,
    "objects_url": _text,
    "objects_endpoint": _text,
    "objects_region": _text,
    "objects_key_id": _text,
    "objects_secret": _text,
    "gateway_host": _text,
    "gateway_port": _whole(0, 65_535),
    "gateway_names": _texts,
    "gateway_address": _text,
    "gateway_cert": _text,
    "gateway_cert_key": _text,
    "gateway_token": token,
    "gateway_key": _text,
    "gateway_org_slots": _whole(1, 100_000),
    "gateway_buffer_slots": _whole(0, 100_000),
    "gateway_min_agent": _text,
    "gateway_hellos_per_s": _number(1, 100_000),
    "gateway_audit_days": _number(1, 36_500),
    "runner_gateway": _text,
    "runner_tls": _one_of("required", "development"),
    "runner_ca": _text,
    "runner_credential": _text,
    "runner_name": _text,
    "runner_state": _text,
    "runner_scratch": _text,
    "runner_slots": _whole(1, 64),
    "runner_quota_mib": _whole(1, 1_000_000_000),
    "runner_floor_mib": _whole(0, 1_000_000_000),
    "runner_output_mib": _whole(1, 1_000_000),
    "runner_memory_mib": _whole(64, 100_000_000),
    "runner_fontset": _text,
}


SECRET: Final = frozenset(
    {"dsn", "exec_token", "gateway_key", "gateway_token", "metrics_token", "objects_secret", "runner_credential"}
)
"""What no message shows; a DSN may hold a password."""


def secrets_of(settings: Settings) -> set[str]:
    """Every secret that is set, and each of the parts that one is made of: what must stand nowhere else."""
    found: set[str] = set()
    for name in SECRET:
        value = getattr(settings, name)
        if value:
            found |= {value, *(part.strip() for part in value.split(","))}
    if settings.dsn and (password := urlsplit(settings.dsn).password):
        found |= {password, unquote(password)}
    return found


def load(
    *,
    flags: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Settings:
    """Reads all settings.

    Args:
        flags: values from the command line or from code, by field name; None means unset.
        environ: the environment; else the process's own.
        folder: where rota.toml may lie; else the working folder. ROTA_CONFIG names another file.

    Returns: checked, frozen settings.

    Raises: SettingsError that names the setting and its source.
    """
    environ = os.environ if environ is None else environ
    found: dict[str, tuple[Any, str]] = {}
    limits: Limits = {table: {} for table in LIMIT_TABLES}
    roles: dict[str, tuple[str, ...]] = {}
    _read_file(_file(environ, folder or Path.cwd()), found, limits, roles)
    _read_environment(environ, found, limits)
    for name, value in (flags or {}).items():
        if value is not None:
            found[name] = (value, f"--{name.replace('_', '-')}")

    checked: dict[str, Any] = {}
    for name, (value, source) in found.items():
        try:
            checked[name] = CHECKS[name](value)
        except ValueError as error:
            raise SettingsError(f"{source} = {_shown(name, value)} is no good: {error}.") from None
    settings = Settings(**checked, limits=limits["limits"], fleet_limits=limits["fleet_limits"], roles=roles)
    if settings.heartbeat_s > settings.lease_s / 2:
        source = found.get("heartbeat_s", found.get("lease_s", ("", "lease_s")))[1]
        raise SettingsError(
            f"{source} is no good: heartbeat_s ({settings.heartbeat_s:g}) must be at most half of lease_s "
            f"({settings.lease_s:g}), so that one lost heartbeat does not stop a job."
        )
    return settings


OWN: Final = frozenset(
    {
        "dsn", "role", "log_format", "log_level", "pool_size", "job_pool_size", "ffmpeg", "start_s", "metrics_port",
        "metrics_host", "metrics_token", "metrics_prefix",
        *(entry.name for entry in fields(Settings) if entry.name.startswith(("runner_", "gateway_"))),
    }
)  # fmt: skip
"""What servers of one database may well set differently."""


def path_of(text: str | Path) -> Path:
    """A path of the settings, in which a leading `~` is a user's home folder.

    Raises: SettingsError if that is not known, as in a container that runs as a user without a name.
    """
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise SettingsError(f"{str(text)!r}: this home folder is not known. Give a whole path, or set HOME.") from None


def digest(settings: Settings) -> str:
    """A short text that is equal for servers whose settings are: each should do a job in the same way."""
    told = {name: getattr(settings, name) for name in Settings.__dataclass_fields__ if name not in OWN}
    shown = repr(
        sorted((name, sorted(value.items()) if isinstance(value, Mapping) else value) for name, value in told.items())
    )
    return hashlib.sha256(shown.encode()).hexdigest()[:12]


def limit_variable(kind: str, *, table: str = "limits") -> str:
    """The environment variable that limits this kind."""
    return LIMIT_TABLES[table] + re.sub(r"[^A-Z0-9]", "_", kind.upper())


def limit_of(settings: Settings, kind: str, *, table: str = "limits") -> int | None:
    """The limit that settings give to this kind, by its environment variable or by its name; None: not set."""
    limits: Mapping[str, int] = getattr(settings, table)
    variable = limit_variable(kind, table=table)
    # The environment goes before the file.
    return limits[variable] if variable in limits else limits.get(kind)


def unknown_limits(settings: Settings, kinds: list[str]) -> list[str]:
    """The limits that name no kind of this program."""
    found: list[str] = []
    for table in LIMIT_TABLES:
        known = {*kinds, *(limit_variable(kind, table=table) for kind in kinds)}
        found += sorted(name for name in getattr(settings, table) if name not in known)
    return found


def _file(environ: Mapping[str, str], folder: Path) -> Path | None:
    named = environ.get(FILE_VARIABLE)
    if named:
        path = Path(named)
        if not path.is_file():
            raise SettingsError(f"{FILE_VARIABLE} names {named}, and there is no such file.")
        return path
    path = folder / FILE_NAME
    return path if path.is_file() else None


def _read_file(
    path: Path | None, found: dict[str, tuple[Any, str]], limits: Limits, roles: dict[str, tuple[str, ...]]
) -> None:
    if path is None:
        return
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"{path} cannot be read: {error}.") from None
    for name, value in content.items():
        if name in LIMIT_TABLES and isinstance(value, dict):
            for kind, limit in value.items():
                limits[name][kind] = _limit(limit, f"{path}: {name}.{kind}", table=name)
        elif name == "roles" and isinstance(value, dict):
            for role, kinds in value.items():
                try:
                    roles[role] = _names(kinds)
                except ValueError as error:
                    raise SettingsError(f"{path}: roles.{role} = {kinds!r} is no good: {error} (of kinds).") from None
        elif name in CHECKS:
            found[name] = (value, f"{path}: {name}")
        elif name in LIMIT_TABLES or name == "roles":
            raise SettingsError(f"{path}: {name} = {value!r} is no good: give a table, [{name}].")
        else:
            raise SettingsError(f"{path}: {name} is no setting of Rota. {_nearest(name)}")


def _read_environment(environ: Mapping[str, str], found: dict[str, tuple[Any, str]], limits: Limits) -> None:
    for variable, value in environ.items():
        if not variable.startswith(PREFIX) or variable == FILE_VARIABLE or variable.startswith(DEV_PREFIX):
            continue
        name = variable.removeprefix(PREFIX).lower()
        if name in CHECKS:
            found[name] = (value, variable)
        elif table := next((table for table, prefix in LIMIT_TABLES.items() if variable.startswith(prefix)), None):
            limits[table][variable] = _limit(value, variable, table=table)
        else:
            raise SettingsError(f"{variable} is no setting of Rota. {_nearest(name, prefix=PREFIX)}")


def _limit(value: Any, source: str, *, table: str) -> int:
    try:
        return LIMIT_CHECKS[table](value)
    except ValueError as error:
        raise SettingsError(f"{source} = {value!r} is no good: {error}.") from None


def _nearest(name: str, *, prefix: str = "") -> str:
    near = difflib.get_close_matches(name.lower(), CHECKS, n=1)
    word = (prefix + near[0].upper() if prefix else near[0]) if near else ""
    return f"Did you mean {word}?" if near else "The page docs/OPERATING.md lists all of them."


def _shown(name: str, value: Any) -> str:
    return "(hidden)" if name in SECRET else repr(value)


assert {entry.name for entry in fields(Settings)} == {*CHECKS, *LIMIT_TABLES, "roles"}, "each setting has its check"
