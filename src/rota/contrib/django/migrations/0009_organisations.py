"""Rota's migration 0009."""

from typing import Any, ClassVar

from django.db import migrations

from rota.contrib.django.operations import RotaStep


class Migration(migrations.Migration):
    """The next."""

    dependencies: ClassVar[list[Any]] = [("rota", "0008_ends")]
    operations: ClassVar[list[Any]] = [RotaStep(9)]
