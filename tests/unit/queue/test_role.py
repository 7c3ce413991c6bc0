"""Which kinds a server takes by its role."""

from collections.abc import Mapping, Sequence

import pytest

from rota.errors import SettingsError
from rota.queue.role import is_role, kinds_of

KINDS = {"mail": "default", "import": "default", "build": "builds", "sweep": "builds"}


@pytest.mark.parametrize(
    ("roles", "table", "taken"),
    [
        (["all"], {}, {"mail", "import", "build", "sweep"}),
        (["builds", "all"], {}, {"mail", "import", "build", "sweep"}),
        (["default"], {}, {"mail", "import"}),
        (["builds"], {}, {"build", "sweep"}),
        (["builds", "default"], {}, {"mail", "import", "build", "sweep"}),
        (["api"], {"api": ["mail", "sweep"]}, {"mail", "sweep"}),
        # Where the table names a role, the code's word for it does not count.
        (["builds"], {"builds": ["build"]}, {"build"}),
        (["builds", "api"], {"api": ["mail"]}, {"build", "sweep", "mail"}),
    ],
)
def test_kinds_of_roles(roles: Sequence[str], table: Mapping[str, Sequence[str]], taken: set[str]) -> None:
    assert kinds_of(roles, kinds=KINDS, table=table) == taken


def test_a_role_that_nothing_has_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(SettingsError, match=r"'bulids'\. Its roles: all, api, builds, default\.$"):
        kinds_of(["bulids"], kinds=KINDS, table={"api": ["mail"]})


def test_a_table_that_names_no_kind_is_refused_whatever_the_role() -> None:
    with pytest.raises(SettingsError, match=r"api names 'mial'.*Its kinds: build, import, mail, sweep"):
        kinds_of(["all"], kinds=KINDS, table={"api": ["mial"]})


def test_names_of_roles() -> None:
    assert all(map(is_role, ("builds", "gpu-2", "a_b")))
    assert not any(map(is_role, ("all", "", "Builds", "a,b", "a" * 51, None, 5)))
