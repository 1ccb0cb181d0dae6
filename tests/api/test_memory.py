"""The memory of a server with default settings stays bounded for hostile requests."""

import gzip
import json
import socket
import threading
from pathlib import Path

import pytest
from serving import start, until

pytestmark = pytest.mark.slow

#: Maximum MB of the server at the defaults, as docs/operate.md states.
WORST_MB = 450
#: MB that the server may keep: its caches, and fragmented memory of the interpreter.
KEPT_MB = 130
#: Bytes of the largest body, and of the bodies whose decoded size is just within the bound.
LARGEST = 8 << 20

TASK = b'"task":{"workload_key":"[]","target":"llvm"}'
RECORD = b'{"i":[["[\\"m%d\\"]","llvm"],[[],[%s]]],"r":[[%s],0,1,1],"v":"v0.6"}'


def filled(head: bytes, unit: bytes, tail: bytes, size: int) -> bytes:
    return head + unit * ((size - len(head) - len(tail)) // len(unit)) + tail


def predict(unit: bytes, size: int) -> tuple[str, bytes, dict[str, str]]:
    return "/v1/predict", filled(b'{"format":1,"x":[0', b"," + unit, b"]}", size), {}


def candidates(each: bytes, count: int, more: bytes = b"") -> tuple[str, bytes, dict[str, str]]:
    head = b'{"format":1,"on_invalid":"report",' + TASK + more + b',"candidates":['
    return "/v1/predict", head + b",".join([each] * count) + b"]}", {}


def measured(records: list[bytes]) -> tuple[str, bytes, dict[str, str]]:
    entries = b",".join(b'{"id":"%d","record":%s}' % entry for entry in enumerate(records))
    body = b'{"format":1,"worker":"w","platform":"p","on_invalid":"report","records":[' + entries + b"]}"
    return "/v1/measurements", body, {}


def steps(first: int, count: int) -> bytes:
    return b",".join(b'["CI",%d]' % n for n in range(first, first + count))


def log(records: list[bytes], route: str) -> tuple[str, bytes, dict[str, str]]:
    return route, b"\n".join(records), {"Content-Type": "application/x-ndjson"}


def as_tvm_writes(record: bytes) -> bytes:
    return json.dumps(json.loads(record)).encode()


NEW_STEPS = [RECORD % (0, steps(400 * n, 400), b"0.1") for n in range(1500)]
#: Requests that take a lot of memory for their size.
SHAPES = {
    "numbers": predict(b"1", LARGEST),
    "numbers within": predict(b"1", 4_300_000),
    "objects within": predict(b"{}", 1_080_000),
    "objects of one within": predict(b'{"a":0}', 2_200_000),
    "texts within": predict(b'"ab"', 4_000_000),
    "floats within": predict(b"1.5", 8_000_000),
    "lists within": predict(b"[]", 1_800_000),
    "nested lists within": predict(b"[[[[1]]]]", 1_900_000),
    "a small body of nested lists": predict(b"[[[[1]]]]", 1_048_000),
    "one candidate": candidates(b"[" + b"0," * 1_900_000 + b"0]", 1, b',"primitives":[["CI",1]]'),
    "candidates": candidates(b"[" + b"0," * 22 + b"0]", 65_536, b',"primitives":[["CI",1]]'),
    "empty candidates": candidates(b"[]", 65_536),
    "invalid candidates": candidates(b"0", 65_536),
    "invalid records": ("/v1/measurements", b'{"format":1,"worker":"w","on_invalid":"report","records":['
        + b",".join([b"0"] * 65_536) + b"]}", {}),
    "a field of measurements that nobody knows": ("/v1/measurements",
        filled(b'{"format":1,"x":[0', b",[[[[1]]]]", b"]}", LARGEST), {}),
    "an id": ("/v1/measurements", filled(b'{"format":1,"worker":"w","on_invalid":"report","records":[{"id":[0',
        b",[[[[1]]]]", b'],"record":0}]}', LARGEST), {}),
    "costs": measured([RECORD % (0, b'["CI",1]', b"1," * 1_000_000 + b"1")]),
    "new primitives": measured(NEW_STEPS[:500]),
    "many new primitives": measured([as_tvm_writes(r) for r in NEW_STEPS[:1200]]),
    "a log of new primitives": log(NEW_STEPS, "/v1/measurements"),
    "a log of new primitives as TVM writes it": log([as_tvm_writes(r) for r in NEW_STEPS[:1200]], "/v1/measurements"),
    "new primitives as TVM writes them": measured([as_tvm_writes(r) for r in NEW_STEPS[:500]]),
    "a log to score": log(NEW_STEPS[:200], "/v1/predict"),
    "a log of tasks": log([RECORD % (n, b"", b"1") for n in range(2000)], "/v1/predict"),
    "blanks": ("/v1/predict", gzip.compress(b" " * (LARGEST - 1000) + json.dumps({"format": 1}).encode()),
        {"Content-Encoding": "gzip"}),
    "a bomb": ("/v1/predict", gzip.compress(b" " * (64 << 20)), {"Content-Encoding": "gzip"}),
}  # fmt: skip


def memory_of(pid: int, name: str) -> float:
    """Return VmHWM or VmRSS of a process in MB."""
    (line,) = [s for s in Path(f"/proc/{pid}/status").read_text().splitlines() if s.startswith(name)]
    return int(line.split()[1]) * 1024 / 1e6


def send(server, name: str) -> int:
    path, body, headers = SHAPES[name]
    return server.request("POST", path, body, {"Content-Type": "application/json", **headers}, timeout=300)[0]


def deaf(server, path: str, body: bytes, headers: dict[str, str]) -> socket.socket:
    """Send a request, and return the socket without reading the answer."""
    caller = socket.socket()
    caller.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    caller.connect(("127.0.0.1", server.port))
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    caller.sendall(head.encode() + body)
    return caller


@pytest.mark.timeout(900)  # a lot of work for a slow machine
def test_the_worst_that_callers_can_do_at_the_defaults(tmp_path, good) -> None:
    with start(tmp_path / "stream") as server:
        pid = server.process.pid
        began = memory_of(pid, "VmRSS")
        statuses = {name: send(server, name) for name in SHAPES}
        assert set(statuses.values()) <= {200, 400, 413, 422, 429}, statuses
        assert {statuses[n] for n in ("candidates", "empty candidates", "new primitives")} == {200}
        assert memory_of(pid, "VmHWM") <= WORST_MB, "one after the other"
        everybody = [threading.Thread(target=send, args=(server, name)) for name in SHAPES for _ in range(2)]
        callers = [deaf(server, *SHAPES["invalid records"]) for _ in range(20)]
        for thread in everybody:
            thread.start()
        for thread in everybody:
            thread.join()
        for caller in callers:
            caller.close()
        assert memory_of(pid, "VmHWM") <= WORST_MB, "all at once"
        until(lambda: memory_of(pid, "VmRSS") <= began + KEPT_MB)
        assert server.post("/v1/predict", good[0])[0] == 200


@pytest.mark.parametrize("name", ["numbers", "a field of measurements that nobody knows"])
def test_what_becomes_too_much_is_413_and_names_the_setting(server, name) -> None:
    path, body, _ = SHAPES[name]
    assert len(body) <= LARGEST
    status, answer = server.post(path, body)
    assert (status, answer["code"]) == (413, "too_large"), answer
    assert "TLP_MAX_DECODED_MIB" in answer["error"]
