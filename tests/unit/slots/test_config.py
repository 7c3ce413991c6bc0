import pytest

from rota.errors import SettingsError
from rota.slots.config import read_exec_config

WHOLE = """
[server]
listen = "[::1]:9000"
token = "secret"
scratch = "/scratch"
state = "/state"
drain_s = 5
frame_bytes_max = "2 MiB"
fast_reserve = false
floor = 5
fair_by = "tenant"
weight_max = 3
weights = { gold = 3 }
pipe_hosts = ["10.0.0.7"]

[waitgroups.video]
processes = 2

[services.transcode]
command = ["ffmpeg", "-i", "pipe:0", "-vf", "scale=-2:{height}", "-f", "mp4", "pipe:1"]
args = { height = "int 144..2160" }
waitgroup = "video"
timeout_s = 3600
stall_s = 60
memory_max = "1 GiB"
stdout_max = 1000
grace_s = 1
"""
LEAST = '[services.x]\ncommand = ["true"]\n'


def test_a_whole_file() -> None:
    config = read_exec_config(WHOLE)
    assert (config.server.host, config.server.port) == ("::1", 9000)
    assert config.server.frame_bytes_max == 2 * 1024 * 1024
    assert config.server.weights == {"gold": 3}
    assert config.server.pipe_hosts == ("10.0.0.7",)
    assert config.waitgroups["video"].processes == 2
    limits = config.services["transcode"].limits
    assert (limits.timeout_s, limits.stall_s, limits.memory_bytes_max, limits.stdout_bytes_max, limits.grace_s) == (
        3600, 60, 1024**3, 1000, 1,
    )  # fmt: skip


def test_without_waitgroups_there_is_one_as_large_as_the_machine() -> None:
    config = read_exec_config(LEAST, cpus=6)
    assert {name: group.processes for name, group in config.waitgroups.items()} == {"default": 6}
    assert config.services["x"].waitgroup == "default"


def test_a_limit_is_switched_off_by_false() -> None:
    assert read_exec_config(LEAST + "stall_s = false\n").services["x"].limits.stall_s is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[services.x\n", "no TOML"),
        ("", "services: no service is declared"),
        ("servces = 1\n" + LEAST, "servces: this is no setting; did you mean services"),
        (LEAST + "comand = 1\n", r"services\.x\.comand: this is no setting; did you mean command"),
        (LEAST + "timeout = 5\n", "did you mean timeout_s"),
        ("[server]\nport = 5\n" + LEAST, r"server\.port: this is no setting"),
        ('[server]\nlisten = "here"\n' + LEAST, r"server\.listen: give an address and a port"),
        ('[server]\ntls_cert = "x"\n' + LEAST, "tls_cert and tls_key belong together"),
        ("[server]\ndrain_s = -1\n" + LEAST, r"server\.drain_s: give seconds from 0"),
        ("[server]\nfast_reserve = 1\n" + LEAST, r"server\.fast_reserve: give true or false"),
        ("[server.weights]\na = 0\n" + LEAST, r"server\.weights\.a: give a whole number"),
        ('[server]\ntoken = "p\u00e4ss"\n' + LEAST, r"server\.token: give letters, digits and signs of ASCII"),
        ('[server]\nlisten = "127.0.0.1:\u00b2"\n' + LEAST, r"server\.listen: give an address and a port"),
        (LEAST + 'waitgroup = "video"\n', r"services\.x\.waitgroup: there is no waitgroup 'video': use one of default"),
        ("[waitgroups.a]\nprocesses = 1\n" + LEAST, "there is no waitgroup 'default': use one of a"),
        ("[waitgroups.a]\n" + LEAST, r"waitgroups\.a\.processes: say how many"),
        ("[waitgroups.a]\nprocesses = 0\n" + LEAST, r"waitgroups\.a\.processes: give a whole number from 1"),
        ("[services.x]\n", r"services\.x\.command: name the program"),
        ('[services.x]\ncommand = "true"\n', r"services\.x\.command: give a list"),
        ('[services.x]\ncommand = [""]\n', "the program has no name"),
        ('[services."a b"]\ncommand = ["x"]\n', "a name is of letters"),
        ('[services.x]\ncommand = ["{p}"]\nargs = {p = "word"}\n', "the program itself cannot be a hole"),
        ('[services.x]\ncommand = ["a", "{h}"]\n', r"services\.x\.command: \{h\} has no type"),
        ('[services.x]\ncommand = ["a", "{h:5}"]\n', "a hole that is no name"),
        ('[services.x]\ncommand = ["a"]\nargs = { h = "int" }\n', r"services\.x\.args\.h: the command does not use"),
        (
            '[services.x]\ncommand = ["a", "{h}"]\nargs = { h = "colour" }\n',
            r"services\.x\.args\.h: 'colour' is no type",
        ),
        ('[services.x]\ncommand = ["a", "-{*}"]\nargs = { "*" = "word" }\n', "as a word of its own"),
        ('[services.x]\ncommand = ["a", "{*}"]\n', r'args = \{ "\*" = "word" \}'),
        (LEAST + "env = { A = 5 }\n", r"services\.x\.env\.A: give text"),
        (LEAST + 'env = { A = "{h}" }\n', r"services\.x\.env\.A: only \{scratch\}"),
        (LEAST + 'env = { "A-B" = "x" }\n', r"services\.x\.env\.A-B: a variable's name"),
        (LEAST + 'memory_max = "5 bananas"\n', r"services\.x\.memory_max: give bytes"),
        (LEAST + "memory_max = 5\n", r"services\.x\.memory_max: give bytes"),
        ("services = 5\n", "services: give a table"),
    ],
)
def test_a_mistake_is_refused_with_its_place(text: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message) as raised:
        read_exec_config(text, source="my.toml")
    assert str(raised.value).startswith("my.toml")
