"""Limits of connections, over real sockets with a real uvicorn and an injected clock."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import uvicorn
import uvloop
from serving import HANG_S, until_in_loop

from tlp_service.api import protocol
from tlp_service.api.connections import ConnectionLimits, Connections, limits_of_process
from tlp_service.api.protocol import HttpProtocol, protocol_of

HEAD = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
#: More bytes than the kernel buffers of a connection.
LARGE = 16 << 20


class Served:
    """A server whose application notes its requests, and answers when the test lets it."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.now = 1000.0
        self.connections = Connections(limits, lambda: self.now)
        self.asked: list[str] = []
        self.bodies: list[bytes] = []
        self.parts: list[int] = []  # bytes of bodies that came at a time
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.answer = b"ok"
        self.port = 0
        self.open: set[HttpProtocol] = set()
        self.callers: list[socket.socket] = []

    async def app(self, scope, receive, send) -> None:
        self.asked.append(scope["path"])
        body = b""
        while scope["path"] != "/early":
            message = await receive()
            body += message.get("body", b"")
            self.parts.append(len(message.get("body", b"")))
            if not message.get("more_body"):
                break
        self.bodies.append(body)
        await self.may_answer.wait()
        headers = [(b"content-length", b"%d" % len(self.answer))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": self.answer})

    def pass_by(self, seconds: float) -> None:
        """Let time pass, in steps of a sweep."""
        for _ in range(int(seconds)):
            self.now += 1
            self.connections.sweep(self.open)

    async def connect(self, data: bytes = b"") -> socket.socket:
        caller = socket.socket()
        self.callers.append(caller)
        caller.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        caller.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(caller, ("127.0.0.1", self.port))
        if data:
            await loop.sock_sendall(caller, data)
        return caller


@asynccontextmanager
async def serving(limits: ConnectionLimits | None = None) -> AsyncIterator[Served]:
    served = Served(limits or ConnectionLimits())
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        served.port = listener.getsockname()[1]
        config = uvicorn.Config(
            served.app,
            http=protocol_of(served.connections),
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            timeout_keep_alive=300,
            timeout_graceful_shutdown=1,
        )
        server = uvicorn.Server(config)
        task = asyncio.create_task(server._serve([listener]))
        served.open = server.server_state.connections
        await until_in_loop(lambda: server.started)
        try:
            yield served
        finally:
            served.may_answer.set()
            for connection in list(served.open):
                connection.abort()
            server.should_exit = True
            await task
            for caller in served.callers:
                caller.close()


async def read(caller: socket.socket, until_end: bytes | None = None) -> bytes:
    """Return the received bytes until `until_end` or, without it, until the connection is closed."""

    async def receive() -> bytes:
        came = b""
        while until_end is None or not came.endswith(until_end):
            try:
                part = await asyncio.get_running_loop().sock_recv(caller, 1 << 20)
            except ConnectionResetError:
                return came
            if not part:
                return came
            came += part
        return came

    return await asyncio.wait_for(receive(), HANG_S)


def run(test) -> None:
    loop = uvloop.new_event_loop()
    try:
        loop.run_until_complete(asyncio.wait_for(test, 4 * HANG_S))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()


def status_of(answer: bytes) -> tuple[int, str]:
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["code"]


@pytest.mark.slow
def test_one_request_of_a_connection_at_a_time() -> None:
    async def test() -> None:
        async with serving() as served:
            served.may_answer.clear()
            caller = await served.connect(HEAD * 3000)
            await until_in_loop(lambda: bool(served.asked))
            (connection,) = served.open
            await until_in_loop(lambda: bool(connection._held))
            assert len(served.asked) == 1
            assert not connection.pipeline
            assert connection.flow.read_paused
            assert connection.held_bytes <= 512 << 10
            served.may_answer.set()
            answer = await read(caller, b"ok")
            while answer.count(b"HTTP/1.1 200 OK") < 3000:
                answer += await read(caller, b"ok")
            assert served.asked == ["/"] * 3000
            assert not connection.flow.read_paused

    run(test())


def test_who_does_not_read_is_asked_no_more() -> None:
    async def test() -> None:
        async with serving() as served:
            served.answer = b"x" * LARGE
            caller = await served.connect(HEAD * 1000)
            await until_in_loop(lambda: bool(served.open) and next(iter(served.open)).flow.write_paused)
            (connection,) = served.open
            # Only what fits into the kernel buffers, since the server does not read.
            sending = asyncio.create_task(asyncio.get_running_loop().sock_sendall(caller, HEAD * 1_000_000))
            await until_in_loop(lambda: connection.flow.read_paused)
            await asyncio.sleep(0.1)
            assert not sending.done()
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            assert len(served.asked) == 1
            assert connection.held_bytes < LARGE + (1 << 20)

    run(test())


BODIES = {
    "known": b"POST /a HTTP/1.1\r\nhost: x\r\ncontent-length: 300000\r\n\r\n" + b"\r\n\r\n" * 75_000,
    "chunked": b"POST /a HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    + b"493e0\r\n" + b"\r\n\r\n" * 75_000 + b"\r\n0\r\n\r\n",
    "a chunk per byte": b"POST /a HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    + b"1\r\n\r\r\n1\r\n\n\r\n" * 150_000 + b"0\r\n\r\n",
}  # fmt: skip


@pytest.mark.parametrize("pace", [1 << 30, 65_536, 1021, 7])
@pytest.mark.parametrize("kind", BODIES)
def test_a_body_and_the_request_behind_it_are_read_whatever_the_pieces(kind, pace) -> None:
    async def test() -> None:
        async with serving() as served:
            sent = BODIES[kind] + HEAD
            parts = [sent[i : i + pace] for i in range(0, len(sent), pace)] if pace > 7 else None
            if parts is None:  # head and ends in small pieces, the middle at once
                parts = [sent[i : i + 7] for i in range(0, 140, 7)]
                parts += [sent[140:-140], *(sent[i : i + 7] for i in range(len(sent) - 140, len(sent), 7))]
            caller = await served.connect()
            for part in parts:
                await asyncio.get_running_loop().sock_sendall(caller, part)
                await asyncio.sleep(0)
            answer = b""
            while answer.count(b"HTTP/1.1 200 OK") < 2:
                answer += await read(caller, b"ok")
            assert served.asked == ["/a", "/"]
            assert served.bodies == [b"\r\n\r\n" * 75_000, b""]

    run(test())


def test_a_chunk_per_byte_leaves_the_event_loop_to_others() -> None:
    """96 kB of such chunks were parsed in one turn; eight such connections made other calls wait for seconds."""

    async def test() -> None:
        async with serving() as served:
            await served.connect(BODIES["a chunk per byte"])
            await until_in_loop(lambda: bool(served.bodies))
            assert sum(served.parts) == 300_000
            # The application may be a turn late.
            assert max(served.parts) <= 2 * (protocol._CHUNKS_PER_TURN + protocol._MAX_CHUNKED_SLICE // 6 + 1)

    run(test())


def test_a_continued_body_and_an_offered_upgrade_and_http_1_0() -> None:
    async def test() -> None:
        async with serving() as served:
            caller = await served.connect(
                b"POST /a HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 3\r\n\r\n"
            )
            assert await read(caller, b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            upgrade = b"connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n"
            second = b"GET /b HTTP/1.1\r\nhost: x\r\n" + upgrade + b"\r\n"
            await asyncio.get_running_loop().sock_sendall(caller, b"abc" + second + HEAD)
            answer = b""
            while answer.count(b"HTTP/1.1 200 OK") < 3:
                answer += await read(caller, b"ok")
            assert served.asked == ["/a", "/b", "/"]
            assert served.bodies == [b"abc", b"", b""]
            with_body = b"POST /c HTTP/1.1\r\nhost: x\r\n" + upgrade + b"content-length: 2\r\n\r\nde"
            await asyncio.get_running_loop().sock_sendall(caller, with_body + HEAD)
            answer = await read(caller)
            assert (answer.count(b"HTTP/1.1 "), answer.count(b"connection: close")) == (1, 1)
            old = await served.connect(b"GET /old HTTP/1.0\r\n\r\n" + HEAD)
            assert (await read(old)).count(b"HTTP/1.1 200 OK") == 1

    run(test())


def test_silence_and_half_a_head_are_ended() -> None:
    async def test() -> None:
        async with serving() as served:
            silent, half = await served.connect(), await served.connect(HEAD[:-2])
            kept = await served.connect(HEAD)
            await read(kept, b"ok")
            await until_in_loop(lambda: sorted(c._head_bytes for c in served.open) == [0, 0, len(HEAD) - 2])
            served.pass_by(19)
            await asyncio.get_running_loop().sock_sendall(
                half, b"x"
            )  # another byte does not extend the time limit
            await until_in_loop(lambda: max(c._head_bytes for c in served.open) == len(HEAD) - 1)
            assert len(served.open) == 3
            served.pass_by(1)
            assert await read(silent) == b""
            assert status_of(await read(half)) == (408, "malformed")
            served.pass_by(279)
            await until_in_loop(lambda: len(served.open) == 1)
            served.pass_by(1)
            assert await read(kept) == b""

    run(test())


def test_the_rest_of_a_body_that_was_answered_has_an_end() -> None:
    async def test() -> None:
        async with serving() as served:
            caller = await served.connect(b"POST /early HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n")
            await read(caller, b"ok")
            served.pass_by(29)
            await asyncio.get_running_loop().sock_sendall(caller, b"x")
            await until_in_loop(lambda: next(iter(served.open))._body_left == 999)
            served.pass_by(1)
            assert await read(caller) == b""

    run(test())


@pytest.mark.slow
def test_an_answer_that_nobody_reads_is_dropped() -> None:
    async def test() -> None:
        async with serving() as served:
            served.answer = b"x" * LARGE
            callers = [
                await served.connect(HEAD),
                await served.connect(HEAD.replace(b"host", b"connection: close\r\nhost")),
            ]
            await until_in_loop(
                lambda: len(served.open) == 2 and all(c.flow.write_paused for c in served.open)
            )
            served.pass_by(1)
            served.pass_by(29)
            assert len(served.open) == 2
            served.pass_by(1)
            await until_in_loop(lambda: not served.open)
            assert served.connections.held_bytes == 0
            assert [len(await read(caller)) < LARGE for caller in callers] == [True, True]

    run(test())


def test_an_answer_that_is_read_byte_by_byte_is_dropped_too() -> None:
    async def test() -> None:
        limits = ConnectionLimits(stalled_s=30, min_read_bytes_per_s=LARGE / 30)
        async with serving(limits) as served:
            served.answer = b"x" * LARGE
            caller = await served.connect(HEAD)
            await until_in_loop(lambda: bool(served.open) and next(iter(served.open)).flow.write_paused)
            (connection,) = served.open
            for _ in range(3):  # it reads some bytes every 30 seconds
                before = connection.held_bytes
                while connection.held_bytes == before:
                    await asyncio.get_running_loop().sock_recv(caller, 65536)
                    await asyncio.sleep(0)
                served.pass_by(19)
                assert served.open
            served.pass_by(5)
            await until_in_loop(lambda: not served.open)

    run(test())


@pytest.mark.slow
def test_the_answers_of_all_connections_are_bounded() -> None:
    async def test() -> None:
        async with serving(ConnectionLimits(max_held_bytes=3 * LARGE)) as served:
            served.answer = b"x" * LARGE
            callers = []
            for number in range(1, 11):
                callers.append(await served.connect(HEAD))
                await until_in_loop(lambda n=number: len(served.asked) == n)
                await until_in_loop(lambda: all(c.flow.write_paused for c in served.open))
                served.pass_by(1)
                assert served.connections.held_bytes <= 3 * LARGE
            await until_in_loop(lambda: len(served.open) == 3)
            # The connections that stalled longest ago were dropped first.
            assert len(await read(callers[0])) < LARGE
            reading = asyncio.create_task(read(callers[-1], b"x" * 10))
            assert await reading

    run(test())


def test_with_too_many_connections_the_longest_idle_one_goes() -> None:
    async def test() -> None:
        async with serving(ConnectionLimits(max_connections=3)) as served:
            kept = await served.connect(HEAD)
            await read(kept, b"ok")
            served.now += 1
            silent, half = await served.connect(), await served.connect(HEAD[:-2])
            await until_in_loop(lambda: len(served.open) == 3)
            served.now += 1
            served.may_answer.clear()
            busy = [await served.connect(HEAD)]
            await until_in_loop(lambda: len(served.asked) == 2)
            assert await read(silent) == b""  # a connection without any request is closed first
            busy.append(await served.connect(HEAD))
            await until_in_loop(lambda: len(served.asked) == 3)
            assert await read(half) == b""
            busy.append(await served.connect(HEAD))
            await until_in_loop(lambda: len(served.asked) == 4)
            assert await read(kept) == b""
            refused = await served.connect()
            assert status_of(await read(refused)) == (503, "not_ready")
            served.may_answer.set()
            for caller in busy:
                assert (await read(caller, b"ok")).startswith(b"HTTP/1.1 200 OK")

    run(test())


def test_there_are_as_many_connections_as_descriptors(monkeypatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (1024, 4096))
    assert limits_of_process().max_connections == 1024 - 96
    monkeypatch.setattr("resource.getrlimit", lambda _: (64, 64))
    assert limits_of_process().max_connections == 16
