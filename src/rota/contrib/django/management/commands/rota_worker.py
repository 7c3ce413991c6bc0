"""`manage.py rota_worker`: the worker of this project."""

import os
import sys
from typing import Any, ClassVar

from django.core.management.base import BaseCommand, CommandError, CommandParser

from rota.contrib.django import conf
from rota.errors import RotaError


class Command(BaseCommand):
    """Becomes `rota worker` for the program that ROTA_APP names."""

    help = "Runs this project's jobs until a signal stops it. Options are those of `rota worker`."
    requires_system_checks: ClassVar[list[str]] = []

    def add_arguments(self, parser: CommandParser) -> None:
        """The one option that people change."""
        parser.add_argument("--processes", type=int, default=1, help="worker processes (1)")

    def handle(self, *_args: Any, **options: Any) -> None:
        """Replaces this process, so that signals reach the worker itself.

        Raises: CommandError if ROTA_APP is not set.
        """
        try:
            conf.program()
        except RotaError as error:
            raise CommandError(str(error)) from error
        argv = [sys.executable, "-m", "rota.cli.main", "worker", "rota.contrib.django.worker:app"]
        os.execv(sys.executable, [*argv, "--processes", str(options["processes"])])  # noqa: S606 - no shell is wanted
