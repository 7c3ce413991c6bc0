"""What the shop sells."""

from django.db import models


class Video(models.Model):
    """One video."""

    path = models.TextField()
    thumbnail = models.TextField(null=True)
