"""Rota as an app of a Django project."""

from django.apps import AppConfig


class RotaConfig(AppConfig):
    """The app; its label is `rota`."""

    name = "rota.contrib.django"
    label = "rota"
    verbose_name = "Background work"
    default_auto_field = "django.db.models.BigAutoField"
