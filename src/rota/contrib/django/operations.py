"""Rota's own migrations as operations of Django's."""

from typing import Any

from django.db import router
from django.db.migrations.operations.base import Operation

from rota.contrib.django import conf
from rota.io import migrate


class RotaStep(Operation):
    """Applies one of Rota's numbered migrations, unless `rota migrate up` has done so already.

    Args:
        number: which.
    """

    reversible = True
    reduces_to_sql = True

    def __init__(self, number: int) -> None:
        self.number = number

    def state_forwards(self, app_label: str, state: Any) -> None:
        """Nothing that Django keeps changes."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """Runs the step's SQL in Django's transaction, on the database that holds the jobs."""
        connection = schema_editor.connection
        if connection.alias != conf.alias() or not router.allow_migrate(connection.alias, app_label):
            return
        conf.connection()
        begin, done, step, record = migrate.step_sql(conf.schema(), self.number)
        if schema_editor.collect_sql:
            for statement in (begin, step, record):
                schema_editor.execute(statement, params=None)
            return
        with connection.cursor() as cursor:
            cursor.execute(begin)
            cursor.execute(done)
            if cursor.fetchone() is None:
                cursor.execute(step)
                cursor.execute(record)

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """Leaves the tables: they hold work. `DROP SCHEMA rota CASCADE` takes them away for good."""

    def describe(self) -> str:
        """What `manage.py migrate --plan` prints."""
        return f"Rota's migration {self.number:04}"
