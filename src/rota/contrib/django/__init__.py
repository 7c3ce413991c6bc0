"""Rota in a Django project: its tables by `manage.py migrate`, its jobs in the admin, its worker by `manage.py`.

    INSTALLED_APPS = [..., "rota.contrib.django"]
    ROTA_APP = "shop.jobs:app"          # where the project makes its rota.App

    # shop/jobs.py
    from rota.contrib.django import make_app

    app = make_app()

    @app.job
    def thumbnail(ctx, payload): ...

    # a view, inside transaction.atomic(): the job exists if and when that commits, with no on_commit
    app.sync.enqueue(thumbnail, {"path": "a.mp4"}, conn=connection)

Settings of the project: `ROTA_APP`; `ROTA_DATABASE`, the alias of the database that holds the jobs ("default"); and
`ROTA_SCHEMA` ("rota"). All else is set as in every program: `rota.toml` and ROTA_* in the environment.
"""

from rota.contrib.django.program import make_app

__all__ = ["make_app"]
