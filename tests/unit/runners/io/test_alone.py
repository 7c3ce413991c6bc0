"""One runner for each state folder."""

from pathlib import Path

import pytest

from rota.errors import SettingsError
from rota.runners.io.alone import LOCK_NAME, alone


def test_a_folder_is_held_by_one_and_free_again(tmp_path: Path) -> None:
    folder = tmp_path / "state" / "runner"
    for _ in range(2):
        with alone(folder):
            with pytest.raises(SettingsError, match="used by another runner"), alone(folder):
                raise AssertionError("two hold it")
            with alone(tmp_path / "another"):
                pass
    assert (folder / LOCK_NAME).stat().st_mode & 0o777 == 0o600


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match=r"file/state cannot be used"), alone(tmp_path / "file" / "state"):
        raise AssertionError("there is no folder")
