"""Fixtures for tests with real servers beside PostgreSQL."""

from collections.abc import Iterator

import pytest

from tests.integration.object_stands import S3Server


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """An S3-compatible server with one bucket, started when it is first asked for."""
    server = S3Server(tmp_path_factory.mktemp("s3"))
    try:
        yield server
    finally:
        server.stop()
