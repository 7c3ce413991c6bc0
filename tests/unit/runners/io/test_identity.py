"""The key file of a device: who may read it, and what a bad one says."""

import base64
import os
from pathlib import Path

import pytest

from rota.errors import SettingsError
from rota.runners.dial import Gateway
from rota.runners.handshake import verify_device
from rota.runners.io import proof
from rota.runners.io.identity import (
    BEGUN_NAME,
    FILE_NAME,
    Identity,
    begun_key,
    end_pairing,
    new_key,
    public_of,
    read_identity,
    write_identity,
)
from rota.runners.messages import DeviceAuth


def made() -> Identity:
    return Identity("wss://runner.example", "device-1", "org-1", "mac-7", new_key()[0])


def test_a_pairing_is_kept_for_its_user_alone(tmp_path: Path) -> None:
    kept = made()
    path = write_identity(tmp_path / "state", kept)
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert read_identity(tmp_path / "state") == kept
    assert [entry.name for entry in path.parent.iterdir()] == [FILE_NAME]
    assert kept.private_key not in repr(kept)


def test_there_may_be_none(tmp_path: Path) -> None:
    assert read_identity(tmp_path) is None
    assert read_identity(tmp_path / "nowhere") is None


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666, 0o620])
def test_a_key_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    write_identity(tmp_path, made()).chmod(mode)
    with pytest.raises(SettingsError, match="may be read by others"):
        read_identity(tmp_path)


def test_a_pipe_in_its_place_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / FILE_NAME, 0o600)
    with pytest.raises(SettingsError, match="is no file"):
        read_identity(tmp_path)


def test_a_link_in_its_place_is_refused(tmp_path: Path) -> None:
    path = write_identity(tmp_path / "a", made())
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / FILE_NAME).symlink_to(path)
    with pytest.raises(SettingsError, match="cannot be read"):
        read_identity(tmp_path / "b")


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"gateway": "g", "deviceId": "d", "orgId": "o", "name": "n"}'])
def test_a_file_that_is_no_pairing_says_what_to_do(tmp_path: Path, content: str) -> None:
    path = tmp_path / FILE_NAME
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(SettingsError, match="rota runner pair"):
        read_identity(tmp_path)


def test_a_file_with_another_key_says_what_to_do(tmp_path: Path) -> None:
    write_identity(tmp_path, Identity("wss://g", "d", "o", "n", "c2hvcnQ"))
    with pytest.raises(SettingsError, match="holds no pairing"):
        read_identity(tmp_path)


def test_a_device_signs_for_the_host_that_it_dials() -> None:
    private, public = new_key()
    identity = Identity("wss://runner.example", "device-1", "org-1", "mac-7", private)
    key, other = (decoded(text) for text in (public, new_key()[1]))
    prove = proof.of_device(lambda: identity, Gateway("runner.example", 443, True))
    first, second = prove(1_800_000_000.0), prove(1_800_000_000.0)
    assert isinstance(first, DeviceAuth)
    assert isinstance(second, DeviceAuth)
    assert first.nonce != second.nonce
    assert verify_device(first, public_key=key, host="runner.example")
    assert not verify_device(first, public_key=key, host="evil.example")
    assert not verify_device(first, public_key=other, host="runner.example")


def decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "==")


def test_the_secret_of_the_pool_is_not_shown() -> None:
    auth = proof.of_pool("s3cret", "vm-1")(0.0)
    assert "s3cret" not in repr(auth)


def test_a_pairing_that_was_begun_keeps_its_key_for_its_code(tmp_path: Path) -> None:
    first = begun_key(tmp_path, "code-1")
    assert begun_key(tmp_path, "code-1") == first
    assert (tmp_path / BEGUN_NAME).stat().st_mode & 0o777 == 0o600
    second = begun_key(tmp_path, "code-2")
    assert second != first and public_of(second) != public_of(first)
    (tmp_path / BEGUN_NAME).chmod(0o644)  # somebody may have seen it
    third = begun_key(tmp_path, "code-2")
    assert third != second
    (tmp_path / BEGUN_NAME).write_text("{}")
    assert begun_key(tmp_path, "code-2") != third
    end_pairing(tmp_path)
    end_pairing(tmp_path)
    assert list(tmp_path.iterdir()) == []
