"""Builds all Redis clients, and checks the URL that they are built from.

A URL chooses the server and how to connect to it: host, user, database, TLS. The service itself chooses how answers are
read and how long it waits for them. Options of a URL for that, such as ``protocol=3``, have no effect.
"""

from __future__ import annotations

import difflib
import ssl
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import redis
import redis.asyncio
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as LostConnection
from redis.exceptions import ReadOnlyError, RedisError
from redis.retry import Retry

#: Options of a URL for the server and the connection.
_OPTIONS = {"db", "username", "password", "client_name", "health_check_interval", "socket_keepalive"}
#: Options of TLS, which only a rediss:// URL may have.
_TLS_OPTIONS = {
    "ssl_ca_certs",
    "ssl_ca_data",
    "ssl_ca_path",
    "ssl_cert_reqs",
    "ssl_certfile",
    "ssl_check_hostname",
    "ssl_ciphers",
    "ssl_exclude_verify_flags",
    "ssl_include_verify_flags",
    "ssl_keyfile",
    "ssl_min_version",
    "ssl_password",
}
#: Options that the service sets itself.
_OWN_OPTIONS = {
    "decode_responses",
    "encoding",
    "encoding_errors",
    "legacy_responses",
    "max_connections",
    "protocol",
    "retry_on_error",
    "retry_on_timeout",
    "single_connection_client",
    "socket_connect_timeout",
    "socket_read_size",
    "socket_timeout",
    "timeout",
}
#: The error for anything that is not a URL of Redis.
_EXPECTED = (
    "expected a URL such as redis://:password@host:6379/0, rediss://host or unix:///path, "
    "with options as ?name=value&name=value; "
    "a password's #, ?, / and @ are written %23, %3F, %2F and %40"
)
#: Seconds that a server gets to accept a connection.
_CONNECT_TIMEOUT_S = 5.0


def connect(
    url: str,
    timeout_s: float | None,
    *,
    encoding_errors: str | None = None,
    retries: int = 1,
    connect_timeout_s: float = _CONNECT_TIMEOUT_S,
) -> redis.Redis:
    """Return a client, which connects at its first command.

    Parameters
    ----------
    url : str
        URL of a Redis or Valkey, checked by `check_redis_url`.
    timeout_s : float or None
        Seconds to wait for an answer; None waits for ever.
    encoding_errors : str or None
        How to decode bytes that are not UTF-8; None leaves answers as bytes.
    retries : int
        How often a command is sent again over a new connection.
    connect_timeout_s : float
        Seconds to wait for the connection.
    """
    own = _own(timeout_s, connect_timeout_s, encoding_errors, Retry(NoBackoff(), retries, (LostConnection,)))
    client: redis.Redis = redis.Redis.from_url(_without_own(url), **own)
    return client


def connect_asyncio(
    url: str,
    timeout_s: float | None,
    *,
    encoding_errors: str | None = None,
    connections: int = 1,
    connect_timeout_s: float = _CONNECT_TIMEOUT_S,
) -> redis.asyncio.Redis:
    """Return a client for coroutines with at most `connections` connections; further commands wait for a free one.

    The other parameters are those of `connect`.
    """
    retry = redis.asyncio.retry.Retry(NoBackoff(), 1, (LostConnection,))
    own = _own(timeout_s, connect_timeout_s, encoding_errors, retry)
    pool = redis.asyncio.BlockingConnectionPool.from_url(
        _without_own(url), max_connections=connections, timeout=_CONNECT_TIMEOUT_S, **own
    )
    client = redis.asyncio.Redis(connection_pool=pool)
    client.auto_close_connection_pool = True
    return client


def check_redis_url(url: str) -> None:
    """Check that clients can be built from a URL, without connecting.

    Raises
    ------
    ValueError
        If they can't. The message names the option but never its value, which may be a password.
    """
    base, _, query = url.partition("?")
    # Part of a password with one of these unquoted would be parsed as an option, and its name would be in the message.
    if "#" in url or "@" in query:
        raise ValueError(_EXPECTED)
    try:
        _check_server(base)
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        raise ValueError(_EXPECTED) from None
    for name, value in pairs:
        _check_option(base, name, value)
    try:
        _build(url)
    except (ValueError, TypeError, OSError, RedisError) as error:
        names = ", ".join(sorted({name for name, _ in pairs} & _TLS_OPTIONS))
        raise ValueError(
            f"expected values of {names} with which TLS works, got {type(error).__name__}"
        ) from None


def ineffective_options(url: str) -> list[str]:
    """Return the options of a URL that have no effect, sorted."""
    return sorted({name for name, _ in parse_qsl(url.partition("?")[2])} & _OWN_OPTIONS)


def _check_server(base: str) -> None:
    parts = urlsplit(base)
    if parts.scheme not in ("redis", "rediss", "unix"):
        raise ValueError("scheme")
    if parts.scheme == "unix":
        if parts.hostname or not parts.path.strip("/"):
            raise ValueError("socket")
    elif parts.port == 0 or not (parts.path in ("", "/") or parts.path[1:].isdecimal()):
        raise ValueError("database")


def _check_option(base: str, name: str, value: str) -> None:
    if name in _OWN_OPTIONS:
        return
    if name not in _OPTIONS | _TLS_OPTIONS:
        near = difflib.get_close_matches(name, _OPTIONS | _TLS_OPTIONS | _OWN_OPTIONS, 1)
        hint = (
            f"did you mean {near[0]!r}?"
            if near
            else f"expected one of {', '.join(sorted(_OPTIONS))} or ssl_…"
        )
        raise ValueError(f"unknown option {name!r}; {hint}")
    if name in _TLS_OPTIONS and not base.startswith("rediss://"):
        raise ValueError(f"the option {name!r} needs TLS, that is a URL that begins with rediss://")
    try:
        if not value:
            raise ValueError("blank")
        _build(f"{base}?{urlencode([(name, value)])}", has_context=False)
    except (ValueError, TypeError, RedisError):
        raise ValueError(f"the option {name!r} can't have this value") from None


def _build(url: str, has_context: bool = True) -> None:
    """Make a connection object of each kind of client, without connecting."""
    for pools in (redis.ConnectionPool, redis.asyncio.ConnectionPool):
        pool = pools.from_url(_without_own(url), **_own(None, _CONNECT_TIMEOUT_S, None, None))
        connection = pool.connection_class(**pool.connection_kwargs)
        if has_context and isinstance(connection, redis.asyncio.SSLConnection):
            assert isinstance(connection.ssl_context.get(), ssl.SSLContext)  # reads the certificate files


def _own(
    timeout_s: float | None, connect_timeout_s: float, encoding_errors: str | None, retry: Any
) -> dict[str, Any]:
    return {
        # Every server and proxy supports protocol 2, and its answers have the same form in all releases of redis-py.
        "protocol": 2,
        "decode_responses": encoding_errors is not None,
        "encoding_errors": encoding_errors or "strict",
        "socket_timeout": timeout_s,
        "socket_connect_timeout": connect_timeout_s,
        "retry": retry,
        # After a failover the host name may resolve to another server: connect again.
        "retry_on_error": [ReadOnlyError],
    }


def _without_own(url: str) -> str:
    base, _, query = url.partition("?")
    kept = [(name, value) for name, value in parse_qsl(query) if name not in _OWN_OPTIONS]
    return f"{base}?{urlencode(kept)}" if kept else base
