"""Names in a session (S70, S75, S76)."""

import pytest

from rota.errors import PathNotAllowed
from rota.runners.paths import session_path


@pytest.mark.parametrize(
    ("given", "spelt"),
    [
        ("in.mp4", "in.mp4"),
        ("./in.mp4", "in.mp4"),
        ("a//b/./c.mp4", "a/b/c.mp4"),
        ("./-dash.mp4", "-dash.mp4"),
        (".hidden", ".hidden"),
        ("http/x", "http/x"),
        ("ビデオ.mp4", "ビデオ.mp4"),
        ("a -i b.mp4", "a -i b.mp4"),
        ("prefix.NUL.json", "prefix.NUL.json"),
        ("console.txt", "console.txt"),
        ("nullable.ts", "nullable.ts"),
        ("Wait… what.mp4", "Wait… what.mp4"),
        ("100%.mp4", "100%.mp4"),
        (" x", " x"),
        ("cafe\u0301.mp4", "caf\u00e9.mp4"),
        ("caf\u00e9.mp4", "caf\u00e9.mp4"),
        ("\u212b/\u2126", "\u00c5/\u03a9"),
    ],
)
def test_a_path_has_one_spelling(given: str, spelt: str) -> None:
    assert session_path(given) == spelt


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("", "empty"),
        (".", "folder itself"),
        ("/etc/passwd", "not relative"),
        ("~/x", "not relative"),
        ("$HOME/x", "not relative"),
        ("../x", r"'\.\.'"),
        ("a/../b", r"'\.\.'"),
        ("a/..", r"'\.\.'"),
        ("file:x", "colon"),
        ("c:x", "colon"),
        ("a\\b", "backslash"),
        ("a\nb", "control"),
        ("a\0b", "control"),
        ("a\u2028b", "control"),
        ("in\u202e4pm", "direction"),
        ("．．／x", "slash"),
        ("a⁄b", "slash"),
        ("．．", "looks like dots"),
        ("-x.mp4", "begins with '-'"),
        ("%2e%2e/x", "encoded"),
        (".. /x", "ends in a dot or a blank"),
        ("a./b", "ends in a dot or a blank"),
        ("x...", "ends in a dot or a blank"),
        ("dir/ /f", "ends in a dot or a blank"),
        ("NUL", "device"),
        ("nul.txt", "device"),
        ("COM1.log", "device"),
        ("COM¹", "device"),
        ("aux.c", "device"),
        ("CONIN$", "device"),
        ("x" * 256, "255 bytes"),
        ("x/" * 600, "1024"),
    ],
)
def test_what_could_mean_something_else_is_refused(given: str, why: str) -> None:
    with pytest.raises(PathNotAllowed, match=why):
        session_path(given)
