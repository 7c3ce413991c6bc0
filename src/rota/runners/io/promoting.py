"""What becomes of a staged output: it is judged by the platform, and promoted or removed."""

import hashlib
from collections.abc import Awaitable
from typing import Any
from uuid import UUID

from rota.errors import VerificationFailed
from rota.objects.keys import staging_key, verifying_key
from rota.objects.store import ObjectStore
from rota.runners.io.engine_session import Promoter
from rota.sessions import Moved, Published


def promoter(objects: ObjectStore) -> Promoter:
    """Promotes the outputs of sessions in this store."""

    def promote(job_id: UUID, n: UUID, *, to: str, expect: Any, bytes_max: int, claimed: Moved) -> Awaitable[Published]:
        return _promote(objects, staging_key(job_id, n), to=to, bytes_max=bytes_max, claimed=claimed)

    return promote


async def _promote(objects: ObjectStore, staged: str, *, to: str, bytes_max: int, claimed: Moved) -> Published:
    judged = verifying_key(staged)
    head = await objects.head(staged)
    if head is None or head.size_bytes > bytes_max:
        await objects.delete(staged)
        raise VerificationFailed("The output is not there, or larger than its limit.")
    await objects.copy(staged, judged)
    await objects.delete(staged)
    digest, size = hashlib.sha256(), 0
    async for chunk in objects.read(judged):
        digest.update(chunk)
        size += len(chunk)
    if digest.hexdigest() != claimed.sha256:
        await objects.delete(judged)
        raise VerificationFailed("The output is not what its runner said that it had sent.")
    await objects.copy(judged, to)
    await objects.delete(judged)
    return Published(to, size, digest.hexdigest())
