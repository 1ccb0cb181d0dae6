"""A Redis URL is checked by building clients before the server listens.

The service itself chooses how to read answers.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import redis
from redis_servers import binaries, redis_server

import tlp_service
from tlp_service.errors import BadSettings
from tlp_service.measurements.recorder import Recorder
from tlp_service.measurements.stream import STREAM
from tlp_service.records.store import RecordStore
from tlp_service.redis_url import _OWN_OPTIONS, check_redis_url, connect, connect_asyncio
from tlp_service.settings import read_settings


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("redis://:hunter2@h/0?tls=true", "unknown option 'tls'"),
        ("redis://:hunter2@h/0?socket_timeut=5", "'socket_timeut'; did you mean 'socket_timeout'?"),
        ("redis://:hunter2@h/0?ssl_cert_reqs=none", "'ssl_cert_reqs' needs TLS"),
        ("redis://:hunter2@h/0?credential_provider=x", "unknown option 'credential_provider'"),
        ("redis://:hunter2@h/0?redis_connect_func=x", "unknown option 'redis_connect_func'"),
        ("redis://:hunter2@h?db=hunter2", "'db' can't have this value"),
        ("redis://:hunter2@h?db=", "'db' can't have this value"),
        ("redis://:hunter2@h?health_check_interval=often", "'health_check_interval' can't"),
        ("unix:///s?password=hunter2&socket_keepalive=1", "'socket_keepalive' can't"),
        ("rediss://:hunter2@h?ssl_cert_reqs=maybe", "'ssl_cert_reqs' can't have this value"),
        ("rediss://:hunter2@h?ssl_validate_ocsp=1", "unknown option 'ssl_validate_ocsp'"),
        ("rediss://:hunter2@h?ssl_ca_certs=/nowhere&ssl_password=hunter2", "ssl_ca_certs"),
        ("redis://:hunter2@h/first", "expected a URL"),
        ("redis://:hunter2@h:99999", "expected a URL"),
        ("redis://:hun/hunter2@h:6379", "expected a URL"),
        ("redis://:hun?hunter2@h", "expected a URL"),
        ("redis://:hun?hunter2=1@h", "expected a URL"),
        ("redis://:hun#hunter2@h", "expected a URL"),
        ("redis://:hunter2@h?db", "expected a URL"),
        ("http://:hunter2@h", "expected a URL"),
        ("unix://", "expected a URL"),
        ("hunter2", "expected a URL"),
    ],
)
def test_a_url_that_cannot_work_is_refused_by_its_option_without_its_secrets(url, named):
    with pytest.raises(ValueError, match=re.escape(named)) as refused:
        check_redis_url(url)
    assert "hunter2" not in str(refused.value)
    assert "\n" not in str(refused.value)
    with pytest.raises(BadSettings, match="TLP_REDIS_URL: ") as refused:
        read_settings(redis_url=url)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        "redis://",
        "redis://h",
        "redis://user:p%40ss%2F@h:6380/15?client_name=tlp&health_check_interval=30&socket_keepalive=true",
        "rediss://h/0?ssl_cert_reqs=none&ssl_check_hostname=false&ssl_min_version=771",
        "unix:///run/valkey.sock?db=3&username=u&password=p",
        "redis://h/0?" + "&".join(f"{name}=x" for name in sorted(_OWN_OPTIONS)),
    ],
)
def test_a_url_that_can_work_is_taken(url):
    check_redis_url(url)
    connect(url, 1).close()
    assert connect_asyncio(url, 1).connection_pool.max_connections == 1


def test_no_other_module_builds_a_client():
    """A client that is built elsewhere would interpret the URL differently."""
    package = Path(tlp_service.__file__).parent
    builders = re.compile(r"from_url\(|Redis\(|ConnectionPool\(")
    found = {
        p.relative_to(package).as_posix() for p in package.rglob("*.py") if builders.search(p.read_text())
    }
    assert found == {"redis_url.py"}


@pytest.mark.parametrize(
    "query", ["protocol=3", "decode_responses=false&encoding=utf-16", "socket_timeout=0.001"]
)
def test_options_of_the_url_change_nothing_in_how_answers_are_read(tmp_path, measured_lines, query):
    """With protocol=3 records were acknowledged, and the recorder failed at each batch."""
    with redis_server(binaries()["valkey"]) as (url, _):
        check_redis_url(f"{url}?{query}")
        with redis.Redis.from_url(url) as client:
            entry = {"id": "a", "worker": "w", "platform": "epyc", "version": ""}
            client.xadd(STREAM, {**entry, "record": measured_lines[0]})
            recorder = Recorder(f"{url}?{query}", RecordStore.create(tmp_path / "store"), "one")
            assert len(recorder.step().records) == 1
            recorder.step()  # blocks for longer than the time-out in the URL
            recorder.close()
            assert client.xlen(STREAM) == 0
    assert RecordStore(tmp_path / "store").counts() == {"epyc": 1}


@pytest.mark.slow
@pytest.mark.parametrize("command", ["serve", "recorder", "trainer"])
def test_a_wrong_query_ends_each_process_with_one_line_before_it_listens(tmp_path, command):
    told = {"TLP_REDIS_URL": "redis://:hunter2@127.0.0.1:1/0?tls=true", "TLP_PORT": "0"}
    ended = subprocess.run(
        [sys.executable, "-m", "tlp_service", command],
        env={**os.environ, **told, "TLP_DATA_DIR": str(tmp_path / "data")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1)
    assert "TLP_REDIS_URL" in ended.stderr
    assert "'tls'" in ended.stderr
    assert "hunter2" not in ended.stderr
    assert not (tmp_path / "data").exists()
