"""Roles: which kinds, and with them which passes, a server takes. Pure.

A kind names its role in code, or it has the role `default`. A server has the role `all`, or a list of roles. The table
`[roles]` of rota.toml may say for a role which kinds it has; then the code's word does not count for that role.

Spec: job queue, "Server roles".
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from rota.errors import SettingsError

ALL_ROLES: Final = "all"
DEFAULT_ROLE: Final = "default"


def is_role(name: object) -> bool:
    """Whether this can be the role of a kind."""
    return isinstance(name, str) and re.fullmatch(r"[a-z0-9_-]{1,50}", name) is not None and name != ALL_ROLES


def kinds_of(roles: Sequence[str], *, kinds: Mapping[str, str], table: Mapping[str, Sequence[str]]) -> frozenset[str]:
    """The kinds that a server with these roles takes.

    Args:
        roles: the server's.
        kinds: the roles of the program's kinds, by kind.
        table: what `[roles]` says: kinds by role.

    Raises: SettingsError for a role that nothing has, and for a kind that the program does not have.
    """
    for role, named in table.items():
        for kind in named:
            if kind not in kinds:
                raise SettingsError(
                    f"[roles] {role} names {kind!r}, a kind that this program does not have. "
                    f"Its kinds: {', '.join(sorted(kinds)) or 'none'}."
                )
    if ALL_ROLES in roles:
        return frozenset(kinds)
    taken: set[str] = set()
    for role in roles:
        own = table[role] if role in table else [kind for kind, named in kinds.items() if named == role]
        if not own and role not in table:
            known = sorted({*kinds.values(), *table, ALL_ROLES})
            raise SettingsError(f"No kind of this program has the role {role!r}. Its roles: {', '.join(known)}.")
        taken.update(own)
    return frozenset(taken)
