"""Fixtures for the service's tests: a running stream, a client that finds no keys of earlier tests, an empty store, registries."""

import pytest
import redis
from models import write_linear_version
from redis_servers import url_fixture
from registries import BACK_ENDS

from tlp_service.records.store import RecordStore

url = url_fixture("valkey")


@pytest.fixture
def client(url):
    with redis.Redis.from_url(url, decode_responses=True) as client:
        if keys := list(client.scan_iter("{tlp}:*")):
            client.delete(*keys)
        yield client


@pytest.fixture
def store(tmp_path):
    return RecordStore.create(tmp_path / "store")


@pytest.fixture(scope="session")
def sources(session_dir):
    """Folders of three versions."""
    return [write_linear_version(session_dir / f"times {factor}", factor) for factor in (1.0, 2.0, 3.0)]


@pytest.fixture(params=BACK_ENDS)
def registry_url(request, tmp_path):
    return BACK_ENDS[request.param](tmp_path)
