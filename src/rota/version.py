"""The version of this program, in one place: packages, `rota --version` and the schema report read it; and the oldest
PostgreSQL that it works with."""

from typing import Final

__version__ = "0.1.0"

SERVER_VERSION_MIN: Final = 140_000
"""As `server_version_num` has it."""
