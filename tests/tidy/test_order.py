"""The order of the files of tests names what is there, and puts the long ones first."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.order import FOLDERS, LONG, rank

TESTS = Path(__file__).parents[1]


def test_each_file_and_each_folder_is_there() -> None:
    assert [name for name in LONG if not (TESTS / name).is_file()] == []
    assert set(FOLDERS) == {path.relative_to(TESTS).parts[0] for path in TESTS.glob("*/**/test_*.py")}


def test_long_files_come_first_and_then_the_folders() -> None:
    files = ["tidy/test_tree.py", "unit/test_ids.py", "faults/test_x.py", LONG[1], LONG[0], "elsewhere/test_y.py"]
    assert sorted(files, key=rank) == [
        LONG[0], LONG[1], "faults/test_x.py", "unit/test_ids.py", "tidy/test_tree.py", "elsewhere/test_y.py",
    ]  # fmt: skip


def test_a_run_takes_them_in_that_order(pytestconfig: pytest.Config) -> None:
    conftest = pytestconfig.pluginmanager.get_plugin(str(TESTS / "conftest.py"))
    files = [TESTS / "unit/test_ids.py", TESTS / "faults/test_x.py", TESTS / LONG[0]]
    items = [SimpleNamespace(path=path) for path in files]
    conftest.pytest_collection_modifyitems(items)
    assert [item.path for item in items] == files[::-1]
    assert pytestconfig.option.loadscopereorder is False, "pytest-xdist would put another order on it"
