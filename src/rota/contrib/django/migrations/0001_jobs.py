"""Rota's migration 0001, and the model of its view."""

from typing import Any, ClassVar

from django.db import migrations, models

from rota.contrib.django import conf
from rota.contrib.django.operations import RotaStep


class Migration(migrations.Migration):
    """The first."""

    initial = True
    dependencies: ClassVar[list[Any]] = []
    operations: ClassVar[list[Any]] = [
        RotaStep(1),
        migrations.CreateModel(
            name="Job",
            fields=[
                ("id", models.UUIDField(primary_key=True, serialize=False)),
                ("kind", models.TextField()),
                ("tenant", models.TextField(null=True)),
                (
                    "state",
                    models.TextField(
                        choices=[(s, s) for s in ("queued", "leased", "done", "failed", "cancelled", "expired")]
                    ),
                ),
                ("priority", models.IntegerField()),
                ("tries", models.IntegerField()),
                ("max_tries", models.IntegerField(null=True)),
                ("run_after", models.DateTimeField()),
                ("created_at", models.DateTimeField()),
                ("started_at", models.DateTimeField(null=True)),
                ("finished_at", models.DateTimeField(null=True)),
                ("leased_by", models.TextField(null=True)),
                ("lease_until", models.DateTimeField(null=True)),
                ("last_error", models.TextField(null=True)),
                ("dedupe_key", models.TextField(null=True)),
                ("payload", models.JSONField()),
                ("progress", models.JSONField(null=True)),
                ("result", models.JSONField(null=True)),
            ],
            options={
                "db_table": f'"{conf.schema()}"."jobs"',
                "ordering": ["-id"],
                "permissions": [("operate_job", "Can retry and cancel jobs")],
                "managed": False,
            },
        ),
    ]
