"""Checks the properties of a Redis server that keep it from losing acknowledged measurements. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

#: First release of Redis with XAUTOCLAIM and XTRIM MINID, which the recorder needs. Every Valkey has them.
MIN_REDIS = (6, 2)

#: Settings that decide whether a write is on disk when it is acknowledged.
_EXPECTED = {"appendonly": "yes", "appendfsync": "always", "no-appendfsync-on-rewrite": "no"}
#: Reported in place of a setting that could not be read.
_UNKNOWN = "not known, for CONFIG GET is not allowed"
#: Used as the answer of INFO if the server does not allow that command.
_NO_INFO = dict.fromkeys(
    ("aof_enabled", "maxmemory", "maxmemory_policy", "role", "redis_version"),
    "not known, for INFO is not allowed",
)


def weaknesses(config: Mapping[str, str] | None, info: Mapping[str, Any] | None) -> list[str]:
    """Return each property that a server lacks, as ``setting: expected …, got …``.

    Parameters
    ----------
    config : mapping or None
        Settings as CONFIG GET returns them; None if the server does not allow it, as most hosted ones.
    info : mapping or None
        Fields as INFO returns them; None if the server does not allow it.
    """
    info = _NO_INFO if info is None else info
    found = {
        **_of_disk(config, info),
        **_of_memory(config, info),
        **_of_role(info),
        **_of_release(info),
    }
    return [f"{setting}: expected {expected}, got {got}" for setting, (expected, got) in found.items()]


def _of_disk(config: Mapping[str, str] | None, info: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    if config is None:
        state = str(info.get("aof_enabled", "0"))
        config = {"appendonly": {"0": "no", "1": "yes"}.get(state, state)}
    return {
        setting: (expected, config.get(setting, _UNKNOWN))
        for setting, expected in _EXPECTED.items()
        if config.get(setting) != expected
    }


def _of_memory(config: Mapping[str, str] | None, info: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    settings = config or {}
    limit = str(settings.get("maxmemory", info.get("maxmemory", _UNKNOWN)))
    policy = str(settings.get("maxmemory-policy", info.get("maxmemory_policy", _UNKNOWN)))
    if limit == "0" or policy == "noeviction":
        return {}
    # The volatile policies are wrong, too: they evict the ids, which expire, and then a resent record counts twice.
    return {"maxmemory-policy": ("noeviction, where maxmemory is set", policy)}


def _of_role(info: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    role = str(info.get("role", "not known"))
    return {} if role == "master" else {"role": ("master, which alone can be written", role)}


def _of_release(info: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    if "valkey_version" in info:  # its redis_version is the one that it is compatible with
        return {}
    release = str(info.get("redis_version", "not known"))
    numbers = re.match(r"(\d+)\.(\d+)", release)
    if numbers and tuple(map(int, numbers.groups())) >= MIN_REDIS:
        return {}
    return {"redis_version": (f"at least {'.'.join(map(str, MIN_REDIS))}", release)}
