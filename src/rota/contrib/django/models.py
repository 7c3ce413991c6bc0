"""The jobs as Django sees them: rows of the view `rota.jobs`, to read. Rota itself writes them."""

from typing import Any, ClassVar

from django.db import models

from rota.contrib.django import conf
from rota.queue.payload import readable


class Stored(models.JSONField):
    """JSON as Rota stored it. A value that Python cannot read is shown as its text, and keeps no page from being shown.

    To migrations it is the field that it is to the database.
    """

    def from_db_value(self, value: Any, *_others: Any) -> Any:
        """What the database gave, as a value or, where that cannot be, as it is."""
        return readable(value) if isinstance(value, str) else value

    def deconstruct(self) -> Any:
        """Django's own field, in its words."""
        name, _path, args, options = super().deconstruct()
        return name, "django.db.models.JSONField", args, options


class Job(models.Model):
    """One job, open or ended."""

    id = models.UUIDField(primary_key=True)
    kind = models.TextField()
    tenant = models.TextField(null=True)
    state = models.TextField(choices=[(s, s) for s in ("queued", "leased", "done", "failed", "cancelled", "expired")])
    priority = models.IntegerField()
    tries = models.IntegerField()
    max_tries = models.IntegerField(null=True)
    run_after = models.DateTimeField()
    created_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    leased_by = models.TextField(null=True)
    lease_until = models.DateTimeField(null=True)
    last_error = models.TextField(null=True)
    dedupe_key = models.TextField(null=True)
    payload = Stored()
    progress = Stored(null=True)
    result = Stored(null=True)

    class Meta:
        """Rota's migrations make the view; Django makes nothing."""

        managed = False
        db_table = f'"{conf.schema()}"."jobs"'
        ordering: ClassVar[list[str]] = ["-id"]
        permissions: ClassVar[list[tuple[str, str]]] = [("operate_job", "Can retry and cancel jobs")]

    def __str__(self) -> str:
        return f"{self.kind} {self.id}"

    def save(self, *_args: Any, **_options: Any) -> None:
        """Refuses. Raises: TypeError."""
        raise TypeError("A job is added with app.sync.enqueue(…), and changed by Rota alone.")

    def delete(self, *_args: Any, **_options: Any) -> Any:
        """Refuses. Raises: TypeError."""
        raise TypeError("A job is cancelled with rota jobs cancel; what has ended is removed after its retention.")
