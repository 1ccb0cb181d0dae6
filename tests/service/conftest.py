"""Fixtures for the service's tests: a stream and its client, an empty store, registries, and what scores."""

import pytest
import redis
from models import write_linear_version
from redis_servers import url_fixture
from registries import BACK_ENDS

from tlp_service.records.store import RecordStore
from tlp_service.scoring.scorer import Scorer
from tlp_service.serving.engine import start_engine
from tlp_service.settings import read_settings

url = url_fixture("valkey")


@pytest.fixture
def client(url):
    """A client of the stream's server, with no keys of earlier tests."""
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


@pytest.fixture(scope="session")
def scorer(linear_version):
    """It takes candidates of later stages to be faster."""
    return Scorer(linear_version)


@pytest.fixture
def engine(tmp_path, linear_version):
    engine = start_engine(read_settings(model=linear_version, data_dir=tmp_path))
    yield engine
    engine.close()
