"""Checks each property that keeps a Redis server from losing acknowledged measurements."""

import asyncio

import pytest
import redis
from redis_servers import binaries, redis_server

from tlp_service.errors import NotReady
from tlp_service.measurements.guarantee import weaknesses
from tlp_service.measurements.stream import MeasurementStream

SAFE = {
    "appendonly": "yes",
    "appendfsync": "always",
    "no-appendfsync-on-rewrite": "no",
    "maxmemory": "0",
    "maxmemory-policy": "noeviction",
}
INFO = {"redis_version": "7.0.15", "role": "master", "aof_enabled": 1, "maxmemory": 0}
SAFE_OPTIONS = ("--appendonly", "yes", "--appendfsync", "always")


@pytest.mark.parametrize(
    ("config", "info", "found"),
    [
        ({}, {}, []),
        ({"appendonly": "no"}, {}, ["appendonly: expected yes, got no"]),
        ({"appendfsync": "everysec"}, {}, ["appendfsync: expected always, got everysec"]),
        (
            {"no-appendfsync-on-rewrite": "yes"},
            {},
            ["no-appendfsync-on-rewrite: expected no, got yes"],
        ),
        ({"maxmemory": "4194304"}, {}, []),
        ({"maxmemory-policy": "allkeys-lru"}, {}, []),  # without maxmemory nothing is evicted
        *(
            (
                {"maxmemory": "4194304", "maxmemory-policy": policy},
                {},
                [f"maxmemory-policy: expected noeviction, where maxmemory is set, got {policy}"],
            )
            for policy in ("allkeys-lru", "allkeys-random", "volatile-lru", "volatile-ttl")
        ),
        ({}, {"role": "slave"}, ["role: expected master, which alone can be written, got slave"]),
        ({}, {"redis_version": "6.0.16"}, ["redis_version: expected at least 6.2, got 6.0.16"]),
        ({}, {"redis_version": 5.0}, ["redis_version: expected at least 6.2, got 5.0"]),
        ({}, {"redis_version": "6.2.0"}, []),
        ({}, {"redis_version": "10.0.1"}, []),
        ({}, {"redis_version": "7.2.4", "valkey_version": "9.1.0", "server_name": "valkey"}, []),
        (
            {"appendonly": "no", "maxmemory": "1", "maxmemory-policy": "volatile-lfu"},
            {"role": "slave", "redis_version": "4.0.9"},
            [
                "appendonly: expected yes, got no",
                "maxmemory-policy: expected noeviction, where maxmemory is set, got volatile-lfu",
                "role: expected master, which alone can be written, got slave",
                "redis_version: expected at least 6.2, got 4.0.9",
            ],
        ),
    ],
)
def test_each_condition_is_told_by_setting_expected_and_got(config, info, found):
    assert weaknesses({**SAFE, **config}, {**INFO, **info}) == found


def test_where_config_is_not_allowed_info_tells_what_it_can():
    unknown = "not known, for CONFIG GET is not allowed"
    fsync = [
        f"appendfsync: expected always, got {unknown}",
        f"no-appendfsync-on-rewrite: expected no, got {unknown}",
    ]
    assert weaknesses(None, INFO) == fsync
    info = {**INFO, "aof_enabled": 0, "maxmemory": 4096, "maxmemory_policy": "allkeys-lru"}
    assert weaknesses(None, info) == [
        "appendonly: expected yes, got no",
        *fsync,
        "maxmemory-policy: expected noeviction, where maxmemory is set, got allkeys-lru",
    ]


def told(url):
    async def ask():
        stream = MeasurementStream(url)
        try:
            return await stream.weaknesses()
        finally:
            await stream.close()

    return asyncio.run(ask())


@pytest.mark.parametrize("name", binaries())
@pytest.mark.parametrize(
    ("options", "settings"),
    [
        (SAFE_OPTIONS, []),
        ((), ["appendonly", "appendfsync"]),
        ((*SAFE_OPTIONS, "--maxmemory", "64mb", "--maxmemory-policy", "noeviction"), []),
        ((*SAFE_OPTIONS, "--maxmemory", "64mb", "--maxmemory-policy", "volatile-lru"), ["maxmemory-policy"]),
        ((*SAFE_OPTIONS, "--replicaof", "127.0.0.1 1"), ["role"]),
    ],
)
def test_a_real_server_is_asked(name, options, settings):
    with redis_server(binaries()[name], *options) as (url, _):
        assert [weakness.split(":")[0] for weakness in told(url)] == settings


def test_a_user_who_may_not_ask_for_settings_is_borne():
    with redis_server(binaries()["valkey"], *SAFE_OPTIONS) as (url, _):
        with redis.Redis.from_url(url) as client:
            client.execute_command("ACL", "SETUSER", "default", "-config")
        assert [weakness.split(":")[0] for weakness in told(url)] == [
            "appendfsync",
            "no-appendfsync-on-rewrite",
        ]


def test_a_user_who_may_ask_for_nothing_is_borne():
    with redis_server(binaries()["valkey"], *SAFE_OPTIONS) as (url, _):
        with redis.Redis.from_url(url) as client:
            client.execute_command("ACL", "SETUSER", "default", "-config", "-info")
        found = told(url)
        assert [weakness.split(":")[0] for weakness in found] == [
            "appendonly",
            "appendfsync",
            "no-appendfsync-on-rewrite",
            "maxmemory-policy",
            "role",
            "redis_version",
        ]
        assert all(weakness.endswith("INFO is not allowed") for weakness in (found[0], *found[3:]))


def test_a_server_that_is_away_is_not_taken_for_a_safe_one(tmp_path):
    with pytest.raises(NotReady):
        told(f"unix://{tmp_path}/nobody.sock")
