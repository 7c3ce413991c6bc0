"""Devices, pairing, nonces, the pool's secrets and the audit trail in PostgreSQL: one method for each .sql file.

Secrets come here as hashes, and public keys as they are. `now` is for tests (I5).
"""

import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import uuid4

import msgspec

from rota.errors import DeviceNotFound, PairingError
from rota.runners import pairing
from rota.runners.handshake import credential_digest
from rota.runners.io.store import Statements
from rota.runners.records import AuditNote, AuditRow, Device, DisabledOrg

DEVICES_MAX = 1000
"""Devices in one list."""
ORGS_MAX = 1000
"""Disabled organisations in one list."""
CODE_TRIES = 5
"""New codes that are drawn until one has a selector of its own."""


class Devices(Statements):
    """Who may connect."""

    async def new_code(
        self, org_id: str, name: str, *, valid_s: float = pairing.VALID_S, now: datetime | None = None
    ) -> pairing.Code:
        """Makes a one-time code that pairs one device to an organisation. It is shown once and kept as a hash.

        Raises: PairingError for a name that is none.
        """
        pairing.check_name("organisation", org_id)
        pairing.check_name("name of a device", name)
        for _ in range(CODE_TRIES):
            code = pairing.new_code(secrets.choice)
            if await self._fetch("add_code.sql", code.selector, code.hash, org_id, name, valid_s, now):
                return code
        raise PairingError("No free pairing code was found. Try again.", code="try_again")

    async def pair(
        self, code: pairing.Code, public_key: bytes, *, name: str | None = None, now: datetime | None = None
    ) -> Device:
        """Registers a device's public key with a code, which is used up. Asked again with both, gives the same.

        Raises: PairingError with code wrong, used, expired or locked; the text is the same for one that never was.
        """
        rows = await self._fetch(
            "pair.sql", code.selector, code.hash, str(uuid4()), public_key, name, pairing.ATTEMPTS_MAX, now
        )
        word = rows[0]["verdict"] if rows else "wrong"
        if word not in ("paired", "again"):
            raise PairingError(pairing.VERDICTS[word], code=word)
        return await self.device(rows[0]["device_id"])

    async def device(self, device_id: str) -> Device:
        """One device.

        Raises: DeviceNotFound.
        """
        found = await self.find([device_id])
        if device_id not in found:
            raise DeviceNotFound(f"There is no device {device_id[:80]}. rota runner list shows them.")
        return found[device_id]

    async def find(self, device_ids: Iterable[str]) -> dict[str, Device]:
        """Those of these devices that are known: what hellos ask."""
        rows = await self._fetch("find_devices.sql", sorted(set(device_ids)))
        return {row["device_id"]: _device(row) for row in rows}

    async def devices(self, org_id: str | None = None, *, device_id: str | None = None) -> list[Device]:
        """Devices, oldest first, at most 1,000."""
        return [_device(row) for row in await self._fetch("devices.sql", org_id, device_id, DEVICES_MAX)]

    async def seen(self, capabilities: Mapping[str, Any], *, now: datetime | None = None) -> None:
        """Devices connected, and say what they can do: each id's object."""
        ids = sorted(capabilities)
        texts = [msgspec.json.encode(capabilities[device_id]).decode() for device_id in ids]
        await self._fetch("see_devices.sql", ids, texts, now)

    async def rename(self, device_id: str, name: str, *, now: datetime | None = None) -> None:
        """Gives a device another name.

        Raises: DeviceNotFound; PairingError for a name that is none.
        """
        pairing.check_name("name of a device", name)
        self._there(await self._fetch("rename_device.sql", device_id, name, now), device_id)

    async def rotate_key(
        self,
        device_id: str,
        public_key: bytes,
        *,
        overlap_s: float = pairing.OVERLAP_S,
        by: bytes | None = None,
        now: datetime | None = None,
    ) -> datetime | None:
        """Registers a device's next key; the one before is good for `overlap_s` seconds more.

        Args:
            device_id: the device.
            public_key: its next key. One that it has already changes nothing.
            overlap_s: how long the one before is good.
            by: the key that the device asked with; None: an operator asks.
            now: for tests.

        Returns: until when the key before is good; None: there was none.

        Raises: DeviceNotFound for an unknown or revoked device, or a key that is not good any more.
        """
        rows = await self._fetch("rotate_key.sql", device_id, public_key, overlap_s, by, now)
        self._there(rows, device_id)
        until: datetime | None = rows[0]["previous_until"]
        return until

    async def revoke(self, device_id: str, *, now: datetime | None = None) -> None:
        """Revokes a device for ever; its gateway closes its connection at once.

        Raises: DeviceNotFound.
        """
        self._there(await self._fetch("revoke_device.sql", device_id, now), device_id)

    async def revoked(self, device_ids: Iterable[str]) -> set[str]:
        """Which of these devices may not be connected."""
        return {row["device_id"] for row in await self._fetch("revoked.sql", sorted(device_ids))}

    async def disable_org(self, org_id: str, *, reason: str | None = None, now: datetime | None = None) -> DisabledOrg:
        """Disables an organisation: its devices are cut off at once (4403), none of its jobs is assigned or created."""
        row = dict((await self._fetch("disable_org.sql", org_id, reason, now))[0])
        del row["told"]
        return DisabledOrg(**row)

    async def enable_org(self, org_id: str, *, now: datetime | None = None) -> bool:
        """Lets an organisation use runners again. False: it was not disabled."""
        return bool(await self._fetch("enable_org.sql", org_id, now))

    async def disabled_orgs(self, org_ids: Iterable[str] | None = None) -> list[DisabledOrg]:
        """Which organisations are disabled, of all or of these; at most 1,000."""
        asked = None if org_ids is None else sorted(org_ids)
        return [DisabledOrg(**dict(row)) for row in await self._fetch("disabled_orgs.sql", asked, ORGS_MAX)]

    async def use_nonces(
        self, nonces: Collection[tuple[str, str]], *, now: datetime | None = None
    ) -> set[tuple[str, str]]:
        """Uses nonces up, each of a device. Returns: those that were not used before."""
        ids, texts = [device_id for device_id, _ in nonces], [nonce for _, nonce in nonces]
        return {(row["device_id"], row["nonce"]) for row in await self._fetch("use_nonces.sql", ids, texts, now)}

    async def new_credential(self, *, overlap_s: float = pairing.OVERLAP_S, now: datetime | None = None) -> str:
        """Makes a secret of the pool, shown once; those before are good for `overlap_s` seconds more."""
        made = pairing.new_credential(secrets.token_urlsafe(32))
        await self._fetch("add_credential.sql", credential_digest(made), overlap_s, now)
        return made

    async def good_credentials(self, credentials: Collection[str], *, now: datetime | None = None) -> set[str]:
        """Which of these are secrets of the pool."""
        hashes = {credential_digest(credential): credential for credential in credentials}
        return {hashes[row["credential_hash"]] for row in await self._fetch("credentials.sql", sorted(hashes), now)}

    async def ended_credentials(self, digests: Iterable[bytes], *, now: datetime | None = None) -> set[bytes]:
        """Which of these secrets, given by their digests, are good no more."""
        rows = await self._fetch("ended_credentials.sql", sorted(digests), now)
        return {row["credential_hash"] for row in rows}

    async def note(self, notes: Sequence[AuditNote], *, now: datetime | None = None) -> None:
        """Keeps events, in this order, for the audit trails of their organisations and of the pool."""
        columns = [[getattr(note, name) for note in notes] for name in AuditNote.__slots__]
        await self._fetch("note.sql", *columns, now)

    async def audit(self, org_id: str | None, *, below: int | None = None, limit: int = 100) -> list[AuditRow]:
        """The audit trail, newest first; the next page is `below` the last id of this one."""
        return [AuditRow(**dict(row)) for row in await self._fetch("audit.sql", org_id, below, limit)]

    @staticmethod
    def _there(rows: list[Any], device_id: str) -> None:
        if not rows:
            raise DeviceNotFound(f"There is no such device {device_id[:80]}. rota runner list shows them.")


def _device(row: Mapping[str, Any]) -> Device:
    values = dict(row)
    found = values["capabilities"]
    values["capabilities"] = None if found is None else msgspec.json.decode(found)
    return Device(**values)
