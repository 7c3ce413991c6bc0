"""The version of this program, in one place: packages, `rota --version` and the schema report read it."""

__version__ = "0.1.0"
