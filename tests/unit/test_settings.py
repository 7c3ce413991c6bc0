"""Settings: where each one comes from, which source wins, and what a bad one says of itself."""

import re
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import pytest

from rota.errors import SettingsError
from rota.settings import LIMIT_TABLES, Settings, digest, limit_of, limit_variable, load, path_of, unknown_limits

SECRET = "postgresql://app:hunter2@db/shop"


def loaded(folder: Path, *, toml: str | None = None, flags: dict[str, Any] | None = None, **environ: str) -> Settings:
    """What a program in this folder gets."""
    if toml is not None:
        (folder / "rota.toml").write_text(toml, encoding="utf-8")
    return load(folder=folder, flags=flags, environ=environ)


def refusal(folder: Path, **sources: Any) -> str:
    """What is said of bad settings."""
    with pytest.raises(SettingsError) as caught:
        loaded(folder, **sources)
    return str(caught.value)


def test_without_any_source_the_defaults_stand(tmp_path: Path) -> None:
    assert loaded(tmp_path) == Settings()
    assert Settings().dsn is None


def test_each_setting_can_come_from_each_source(tmp_path: Path) -> None:
    told: dict[str, Any] = {
        "dsn": "postgresql://h/d", "schema": "jobs", "pooler": "transaction", "job_pool_size": 7, "pool_size": 5,
        "lease_s": 120.0, "heartbeat_s": 12.5, "max_tries": 9, "limit": 2, "poll_s": 0.5, "stop_grace_s": 3.0,
        "cancel_grace_s": 4.0, "keep_failed_days": 2.5,
        "keep_days": 1.5, "log_format": "json", "log_level": "debug", "ffmpeg": "/opt/ffmpeg",
        "exec_addresses": "exec-1:8750", "exec_token": "s3cret", "exec_ca": "ca.pem", "exec_wait_s": 5.0,
        "pipe_host": "10.0.0.7", "pipe_port": 9000,
        "runner_gateway": "wss://gateway", "runner_tls": "development", "runner_ca": "ca.pem",
        "runner_credential": "s3cret", "runner_name": "mac-7", "runner_state": "/var/runner",
        "runner_scratch": "/scratch", "runner_slots": 3, "runner_quota_mib": 5, "runner_floor_mib": 6,
        "runner_output_mib": 7, "runner_memory_mib": 64, "runner_fontset": "3",
    }  # fmt: skip
    expected = Settings(**told)
    as_text = {f"ROTA_{name.upper()}": str(value) for name, value in told.items()}
    lines = [f"{name} = {value!r}" for name, value in told.items()]
    assert loaded(tmp_path, **as_text) == expected
    assert loaded(tmp_path, flags=told) == expected
    assert loaded(tmp_path, toml="\n".join(lines)) == expected
    assert all(getattr(expected, name) != getattr(Settings(), name) for name in told), "each differs from its default"


def test_flags_go_before_the_environment_and_that_before_the_file(tmp_path: Path) -> None:
    toml = "schema = 'from_file'\npool_size = 2\nmax_tries = 2"
    settings = loaded(tmp_path, toml=toml, flags={"schema": "from_flag"}, ROTA_SCHEMA="from_env", ROTA_POOL_SIZE="3")
    assert (settings.schema, settings.pool_size, settings.max_tries) == ("from_flag", 3, 2)


def test_an_unset_flag_hides_nothing_and_a_default_said_aloud_does(tmp_path: Path) -> None:
    toml = "schema = 'from_file'\nlimit = 4"
    settings = loaded(tmp_path, toml=toml, flags={"schema": None, "limit": Settings().limit})
    assert settings.schema == "from_file"
    assert settings.limit == Settings().limit


def test_only_the_value_that_wins_is_checked(tmp_path: Path) -> None:
    assert loaded(tmp_path, toml="pool_size = 0", ROTA_POOL_SIZE="8").pool_size == 8


def test_settings_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        Settings().schema = "other"


# --- bad values ---

WRONG: dict[str, list[Any]] = {
    "dsn": ["", "   ", 5],
    "schema": ["Rota", "pg_rota", "1st", "a-b", 'a"b', "s" * 42, "", 7],
    "pooler": ["pgbouncer", "", True],
    "job_pool_size": [1, 101, 2.5, "many", True, "", "6 0"],
    "pool_size": [0, 101, -1, "1e1", True],
    "lease_s": [0.9, 86_401, "nan", "inf", "soon", True, ""],
    "heartbeat_s": [0.05, 43_201, "-inf"],
    "max_tries": [0, 1001, "three"],
    "limit": [-1, 100_001, "0x10"],
    "role": ["", " ", "a,,b", [], ["a", 1], ["a", " "], 5, True],
    "poll_s": [0.01, 61, float("nan")],
    "stop_grace_s": [-0.1, 3601],
    "start_s": [0.9, 3601, "never"],
    "cancel_grace_s": [-1, 3601],
    "keep_days": [0, 3651],
    "keep_failed_days": [0, 3651],
    "log_format": ["yaml", "JSON"],
    "log_level": ["trace", "INFO", 10],
    "metrics_port": [-1, 65_536, "http"],
    "metrics_host": ["", 0],
    "metrics_token": ["", " ", "\u2713"],
    "metrics_prefix": ["", "my-rota", "1st", "p" * 42],
    "ffmpeg": ["", 1],
    "exec_addresses": ["", 1, [1]],
    "exec_token": ["", 1, "p\u00e4ss", " a"],
    "exec_ca": ["", 1],
    "exec_wait_s": [0, 86_401, "long"],
    "pipe_host": ["", 1],
    "pipe_port": [-1, 65_536, "http"],
    "gateway_url": ["", 1],
    "gateway_token": ["", 1, "a\tb"],
    "gateway_ca": ["", 1],
    "gateway_host": ["", 1],
    "gateway_port": [-1, 65_536, "http"],
    "gateway_names": ["", 1, [1]],
    "gateway_address": ["", 1],
    "gateway_cert": ["", 1],
    "gateway_cert_key": ["", 1],
    "gateway_key": ["", 1],
    "gateway_org_slots": [0, 100_001, "all"],
    "gateway_buffer_slots": [-1, 100_001, "some"],
    "gateway_min_agent": ["", 1],
    "gateway_hellos_per_s": [0, 100_001, "many"],
    "gateway_audit_days": [0, "x"],
    "gateway_wait_s": [0, 86_401, "long"],
    "objects": ["", 1],
    "objects_url": ["", 1],
    "objects_endpoint": ["", 1],
    "objects_region": ["", 1],
    "objects_key_id": ["", 1],
    "objects_secret": ["", 1],
    "runner_gateway": ["", 1],
    "runner_tls": ["off", True],
    "runner_ca": ["", 1],
    "runner_credential": ["", 1],
    "runner_name": ["", 1],
    "runner_state": ["", 1],
    "runner_scratch": ["", 1],
    "runner_slots": [0, 65, "all"],
    "runner_quota_mib": [0, -1, "1G"],
    "runner_floor_mib": [-1, "low"],
    "runner_output_mib": [0, 1_000_001],
    "runner_memory_mib": [63, "1G"],
    "runner_fontset": ["", 1],
}


def test_each_setting_has_wrong_values_here() -> None:
    assert {*WRONG, *LIMIT_TABLES, "roles"} == set(Settings.__dataclass_fields__)


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_a_bad_value_names_itself_and_its_source(tmp_path: Path, name: str, value: Any) -> None:
    said = refusal(tmp_path, flags={name: value})
    flag = "--" + name.replace("_", "-")
    secrets = {
        "dsn",
        "exec_token",
        "gateway_key",
        "gateway_token",
        "metrics_token",
        "objects_secret",
        "runner_credential",
    }
    shown = "(hidden)" if name in secrets else repr(value)
    assert said.startswith(f"{flag} = {shown} is no good: give ")
    if isinstance(value, str):
        variable = f"ROTA_{name.upper()}"
        assert refusal(tmp_path, **{variable: value}).startswith(f"{variable} = {shown} is no good: give ")
        quoted = value.replace('"', '\\"')
        toml = refusal(tmp_path, toml=f'{name} = "{quoted}"')
        assert toml.startswith(f"{tmp_path / 'rota.toml'}: {name} = {shown} is no good: give ")


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("job_pool_size", 2, 100), ("pool_size", 1, 100), ("lease_s", 1, 86_400), ("max_tries", 1, 1000),
        ("limit", 0, 100_000), ("poll_s", 0.05, 60), ("stop_grace_s", 0, 3600), ("start_s", 1, 3600),
        ("keep_failed_days", 0.001, 3650),
        ("keep_days", 0.001, 3650), ("exec_wait_s", 0.1, 86_400), ("pipe_port", 0, 65_535),
        ("gateway_wait_s", 0.1, 86_400),
    ],
)  # fmt: skip
def test_the_limits_of_numbers_belong_to_them(tmp_path: Path, name: str, low: float, high: float) -> None:
    for value in (low, high):
        flags = {name: value, "heartbeat_s": 0.1}
        assert getattr(loaded(tmp_path, flags=flags), name) == value
        assert f"from {low:g} to {high:,g}" in refusal(tmp_path, flags={name: high * 2})


def test_a_heartbeat_of_more_than_half_the_lease_is_refused_by_the_name_of_what_was_set(tmp_path: Path) -> None:
    assert refusal(tmp_path, ROTA_LEASE_S="40").startswith("ROTA_LEASE_S is no good: heartbeat_s (30) must be at most")
    both = refusal(tmp_path, ROTA_LEASE_S="40", flags={"heartbeat_s": 21})
    assert both.startswith("--heartbeat-s is no good: heartbeat_s (21) must be at most half of lease_s (40)")
    assert loaded(tmp_path, ROTA_LEASE_S="40", ROTA_HEARTBEAT_S="20").heartbeat_s == 20


def test_an_address_is_never_shown(tmp_path: Path) -> None:
    for said in (
        refusal(tmp_path, toml=f"dsn = ['{SECRET}']"),
        refusal(tmp_path, toml=f"dsnn = '{SECRET}'"),
        refusal(tmp_path, toml=f"dsn = '{SECRET}"),
        refusal(tmp_path, toml=f"dsn = '{SECRET}'\ndsn = '{SECRET}'"),
        refusal(tmp_path, toml="", flags={"dsn": [SECRET]}),
        refusal(tmp_path, toml="", ROTA_DATABASE=SECRET),
        refusal(tmp_path, toml="", ROTA_DSN=SECRET, ROTA_LIMIT="-1"),
    ):
        assert "hunter2" not in said and "app:" not in said


# --- unknown names ---


@pytest.mark.parametrize(("name", "meant"), [("pool_sizes", "pool_size"), ("Schema", "schema"), ("lease", "lease_s")])
def test_an_unknown_name_is_refused_with_the_nearest_one(tmp_path: Path, name: str, meant: str) -> None:
    said = refusal(tmp_path, toml=f"{name} = 1")
    assert said == f"{tmp_path / 'rota.toml'}: {name} is no setting of Rota. Did you mean {meant}?"


def test_an_unknown_variable_is_refused_with_the_nearest_one(tmp_path: Path) -> None:
    said = refusal(tmp_path, ROTA_POOLSIZE="1")
    assert said == "ROTA_POOLSIZE is no setting of Rota. Did you mean ROTA_POOL_SIZE?"


def test_a_name_like_no_other_is_sent_to_the_page_that_lists_them_all(tmp_path: Path) -> None:
    assert refusal(tmp_path, ROTA_QQQ="1").endswith("The page docs/OPERATING.md lists all of them.")
    page = (Path(__file__).parents[2] / "docs/OPERATING.md").read_text()
    assert [name for name in WRONG if f"ROTA_{name.upper()}" not in page] == []


def test_variables_of_others_and_of_the_dev_door_are_left_alone(tmp_path: Path) -> None:
    assert (
        loaded(tmp_path, ROTATION="1", MY_ROTA_DSN="x", rota_dsn="x", ROTA_DEV_VENV="/v", ROTA_DEV_ANY="") == Settings()
    )


# --- files ---


def test_rota_config_names_another_file(tmp_path: Path) -> None:
    named = tmp_path / "elsewhere.toml"
    named.write_text("schema = 'elsewhere'")
    assert loaded(tmp_path, toml="schema = 'here'", ROTA_CONFIG=str(named)).schema == "elsewhere"
    named.write_text("schema = 5")
    assert refusal(tmp_path, ROTA_CONFIG=str(named)).startswith(f"{named}: schema = 5 is no good")


def test_a_file_that_rota_config_names_must_be_there(tmp_path: Path) -> None:
    said = refusal(tmp_path, ROTA_CONFIG=str(tmp_path / "gone.toml"))
    assert said == f"ROTA_CONFIG names {tmp_path / 'gone.toml'}, and there is no such file."
    assert "no such file" in refusal(tmp_path, ROTA_CONFIG=str(tmp_path))
    assert loaded(tmp_path, ROTA_CONFIG="") == Settings()


@pytest.mark.parametrize("content", [b"schema = ", b"schema\n", b"a = 1\na = 2", b"schema = '\xff'", b"[limits\n"])
def test_a_broken_file_is_refused_by_its_name(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "rota.toml").write_bytes(content)
    with pytest.raises(SettingsError, match=re.escape(f"{tmp_path / 'rota.toml'} cannot be read: ")):
        load(folder=tmp_path, environ={})


def test_a_folder_of_that_name_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "rota.toml").mkdir()
    assert loaded(tmp_path) == Settings()


# --- limits of kinds ---


def test_limits_come_from_the_file_and_the_environment_which_goes_first(tmp_path: Path) -> None:
    settings = loaded(tmp_path, toml="[limits]\n'send-mail' = 3\nbuild = 2", ROTA_LIMIT_SEND_MAIL="5", ROTA_LIMIT="7")
    assert settings.limit == 7
    assert limit_of(settings, "send-mail") == 5
    assert limit_of(settings, "build") == 2
    assert limit_of(settings, "other") is None


def test_a_limit_of_zero_is_a_limit(tmp_path: Path) -> None:
    assert limit_of(loaded(tmp_path, ROTA_LIMIT_BUILD="0"), "build") == 0


def test_a_kind_has_a_variable_whatever_its_name() -> None:
    assert limit_variable("send-mail.v2") == "ROTA_LIMIT_SEND_MAIL_V2"
    assert limit_variable("größe") == "ROTA_LIMIT_GR_SSE"


@pytest.mark.parametrize("value", ["-1", "100001", "few", "1.5"])
def test_a_bad_limit_names_itself_and_its_source(tmp_path: Path, value: str) -> None:
    said = refusal(tmp_path, ROTA_LIMIT_BUILD=value)
    assert said == f"ROTA_LIMIT_BUILD = {value!r} is no good: give a whole number from 0 to 100,000."
    said = refusal(tmp_path, toml=f"[limits]\nbuild = '{value}'")
    assert said.startswith(f"{tmp_path / 'rota.toml'}: limits.build = {value!r} is no good")


def test_limits_that_name_no_kind_are_found(tmp_path: Path) -> None:
    settings = loaded(tmp_path, toml="[limits]\nbuild = 2\nbuidl = 2", ROTA_LIMIT_MAIL="1", ROTA_LIMIT_MIAL="1")
    assert unknown_limits(settings, ["build", "mail"]) == ["ROTA_LIMIT_MIAL", "buidl"]
    assert unknown_limits(settings, ["build", "mail", "buidl", "MIAL"]) == []


def test_limits_of_the_fleet_have_a_table_and_variables_of_their_own(tmp_path: Path) -> None:
    settings = loaded(
        tmp_path, toml="[fleet_limits]\nbuild = 2\nmial = 1", ROTA_FLEET_LIMIT_MAIL="5", ROTA_LIMIT_MAIL="1"
    )
    assert limit_of(settings, "build", table="fleet_limits") == 2
    assert limit_of(settings, "mail", table="fleet_limits") == 5
    assert limit_of(settings, "build") is None
    assert unknown_limits(settings, ["build", "mail"]) == ["mial"]
    said = refusal(tmp_path, ROTA_FLEET_LIMIT_MAIL="0")
    assert said == "ROTA_FLEET_LIMIT_MAIL = '0' is no good: give a whole number from 1 to 100,000."


# --- the address ---


def test_a_program_that_needs_a_database_says_how_to_name_one() -> None:
    with pytest.raises(SettingsError, match=r"No database is set\. Set ROTA_DSN="):
        Settings().require_dsn()
    assert replace(Settings(), dsn=SECRET).require_dsn() == SECRET


def test_addresses_of_exec_servers_may_be_a_list_in_the_file(tmp_path: Path) -> None:
    assert loaded(tmp_path, toml='exec_addresses = ["a:1", "b:2"]').exec_addresses == "a:1,b:2"


# --- roles ---


def test_a_role_is_one_name_or_a_list(tmp_path: Path) -> None:
    assert loaded(tmp_path).role == ("all",)
    assert loaded(tmp_path, ROTA_ROLE="builds").role == ("builds",)
    assert loaded(tmp_path, ROTA_ROLE=" api, builds,api").role == ("api", "builds")
    assert loaded(tmp_path, toml="role = ['api', 'builds']").role == ("api", "builds")


def test_a_table_says_which_kinds_a_role_has(tmp_path: Path) -> None:
    settings = loaded(tmp_path, toml="[roles]\napi = ['mail', 'import']\nworker = 'build'")
    assert settings.roles == {"api": ("mail", "import"), "worker": ("build",)}
    said = refusal(tmp_path, toml="[roles]\napi = [1]")
    assert said == f"{tmp_path / 'rota.toml'}: roles.api = [1] is no good: give a name, or a list of names (of kinds)."


def test_servers_with_equal_settings_have_an_equal_digest() -> None:
    plain = Settings(dsn="postgresql://a/b", limits={"a": 1, "b": 2})
    for own in (
        {"dsn": "postgresql://c/d"}, {"role": ("builds",)}, {"log_level": "debug"}, {"limits": {"b": 2, "a": 1}},
    ):  # fmt: skip
        assert digest(replace(plain, **own)) == digest(plain)
    for other in ({"lease_s": 60.0}, {"limits": {"a": 1}}, {"keep_days": 1.0}, {"roles": {"api": ("a",)}}):
        assert digest(replace(plain, **other)) != digest(plain)


def test_a_file_of_windows_with_a_byte_order_mark_and_its_line_ends_is_read(tmp_path: Path) -> None:
    (tmp_path / "rota.toml").write_bytes(b"\xef\xbb\xbfpool_size = 2\r\nlimit = 3\r\n")
    settings = loaded(tmp_path)
    assert (settings.pool_size, settings.limit) == (2, 3)


@pytest.mark.parametrize(
    ("toml", "name"), [("limits = 3", "limits"), ("fleet_limits = [1]", "fleet_limits"), ("roles = ['a']", "roles")]
)
def test_a_table_that_is_none_is_said_to_be_one(tmp_path: Path, toml: str, name: str) -> None:
    assert refusal(tmp_path, toml=toml).endswith(f"is no good: give a table, [{name}].")


def test_a_path_may_begin_with_a_home_folder_that_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    assert path_of("~/.rota/runner") == Path("/home/ada/.rota/runner")
    assert path_of(Path("/srv/~x")) == Path("/srv/~x")
    with pytest.raises(SettingsError, match="'~nobody-of-that-name/x': this home folder is not known"):
        path_of("~nobody-of-that-name/x")
