"""Rota's migration 0011."""

from typing import Any, ClassVar

from django.db import migrations

from rota.contrib.django.operations import RotaStep


class Migration(migrations.Migration):
    """The next."""

    dependencies: ClassVar[list[Any]] = [("rota", "0010_facts")]
    operations: ClassVar[list[Any]] = [RotaStep(11)]
