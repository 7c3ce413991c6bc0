"""The object store that a program's settings describe."""

from typing import Final
from urllib.parse import urlsplit

from starlette.routing import BaseRoute, Mount

from rota.errors import SettingsError
from rota.objects.io.folder import FolderStore
from rota.objects.io.folder_server import FolderServer
from rota.objects.io.s3 import S3ObjectStore, S3Settings
from rota.objects.store import ObjectStore
from rota.settings import Settings, path_of

FOLDER: Final = "folder:"
S3: Final = "s3://"
SERVED_AT: Final = "/objects"
"""Where a gateway serves a folder; `objects_url` ends so, unless a proxy before it is told otherwise."""


def store_of(settings: Settings) -> ObjectStore:
    """Makes the store.

    Raises: SettingsError if none is set, or a setting that it needs is missing.
    """
    place = settings.objects
    if place is None:
        raise SettingsError(
            "No object store is set, and media of sessions has to lie somewhere. Set ROTA_OBJECTS=s3://bucket or "
            "folder:PATH, see docs/guide/object-stores.md."
        )
    if place.startswith(FOLDER):
        return folder_of(settings)
    if not place.startswith(S3) or not urlsplit(place).netloc:
        raise SettingsError(f"objects = {place!r} is no object store. Give s3://bucket or folder:PATH.")
    return S3ObjectStore(
        S3Settings(
            endpoint=_needed(settings.objects_endpoint, "objects_endpoint"),
            public_endpoint=settings.objects_url,
            bucket=urlsplit(place).netloc,
            region=settings.objects_region,
            access_key_id=_needed(settings.objects_key_id, "objects_key_id"),
            secret_access_key=_needed(settings.objects_secret, "objects_secret"),
        )
    )


def folder_of(settings: Settings) -> FolderStore:
    """The store of a folder, which a gateway serves.

    Raises: SettingsError as `store_of`, and if `objects` names no folder.
    """
    place = settings.objects or ""
    if not place.startswith(FOLDER) or place == FOLDER:
        raise SettingsError(f"objects = {place!r} names no folder. Give folder:PATH.")
    url = _needed(settings.objects_url, "objects_url")
    return FolderStore(path_of(place.removeprefix(FOLDER)), base_url=url)


def routes_of(settings: Settings) -> list[BaseRoute]:
    """What a gateway serves beside its own routes: the objects of a folder, below /objects; nothing for other stores.

    Raises: SettingsError as `store_of`.
    """
    if not (settings.objects or "").startswith(FOLDER):
        return []
    return [Mount(SERVED_AT, FolderServer(folder_of(settings)).app())]


def _needed(value: str | None, name: str) -> str:
    if value is None:
        raise SettingsError(f"The object store needs {name}: set ROTA_{name.upper()}, see docs/guide/object-stores.md.")
    return value
