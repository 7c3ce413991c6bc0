"""A session's folder as the gate sees it."""

import os
from pathlib import Path

from rota.runners.argv.files import HEAD_BYTES, TEXT_BYTES_MAX
from rota.runners.io.session_folder import SessionFolder


def test_each_kind_of_name_is_shown_as_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s3cret")
    folder = tmp_path / "session"
    (folder / "in").mkdir(parents=True)
    (folder / "in/a.txt").write_text("x" * (HEAD_BYTES + 1))
    (folder / "link").symlink_to("../secret")
    (folder / "away").symlink_to("/etc")
    os.mkfifo(folder / "pipe")
    os.link(tmp_path / "secret", folder / "second")
    view = SessionFolder(folder)

    file = view.entry("in/a.txt")
    assert file is not None
    assert (file.kind, file.size, file.head) == ("file", HEAD_BYTES + 1, b"x" * HEAD_BYTES)
    assert [
        getattr(view.entry(name), "kind", None)
        for name in ("in", "link", "pipe", "second", "gone", "in/a.txt/b", "a\0b")
    ] == [
        "folder",
        "link",
        "other",
        "other",
        None,
        None,
        None,
    ]
    link = view.entry("link")
    assert link is not None
    assert link.target == "../secret"
    assert sorted(view.paths()) == ["away", "in/a.txt", "link", "pipe", "second"]


def test_a_text_is_read_whole_or_not_at_all(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("é")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    (tmp_path / "long").write_bytes(b"x" * (TEXT_BYTES_MAX + 1))
    (tmp_path / "link").symlink_to("a")
    os.mkfifo(tmp_path / "pipe")
    view = SessionFolder(tmp_path)
    assert [view.text(name) for name in ("a", "binary", "long", "link", "gone")] == ["é", None, None, None, None]
    assert view.text("pipe") in {None, ""}
