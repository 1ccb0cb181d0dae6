"""``tlp serve``: load the version, start the embedded stream if none is named, and run uvicorn."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib.util
import logging
import os
import signal
import socket
import sys
from pathlib import Path
from types import FrameType

import uvicorn

from tlp_service.api.app import create_app
from tlp_service.api.connections import Connections, limits_of_process
from tlp_service.api.protocol import protocol_of
from tlp_service.children import Child
from tlp_service.errors import BadRecords, BadSettings
from tlp_service.idle_memory import IdleMemory, map_large_allocations
from tlp_service.measurements.embedded import embedded_redis
from tlp_service.records.store_path import check_store_path
from tlp_service.redis_url import ineffective_options
from tlp_service.serving.engine import Engine, start_engine
from tlp_service.settings import Settings
from tlp_service.stuck_threads import leave_stuck_threads

log = logging.getLogger(__name__)

#: Seconds for which an idle connection is kept open: longer than a search round, so that workers need not
#: reconnect.
KEEP_ALIVE_S = 300
#: Switch interval of the GIL in seconds. The default of 5 ms is longer than a batch takes. With it, the
#: scoring threads would mostly wait for the GIL while a large body is read.
SWITCH_INTERVAL_S = 0.0005
#: Thresholds of the garbage collector. One large body creates a million lists, none of which is garbage.
GC_THRESHOLD = (50_000, 20, 20)
#: How often per second uvicorn calls `Server.on_tick`.
TICKS_PER_S = 10
#: Seconds that running requests have to finish after SIGTERM.
GRACE_S = 20


def serve(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT.

    Raises
    ------
    BadSettings, BadVersion
        If the server cannot start with its settings. It never falls back to other settings.
    """
    _log_settings(settings)
    wants_recorder = settings.recorder if settings.recorder is not None else settings.redis_url is None
    wants_trainer = _wants_trainer(settings)
    settings.make_data_dir()
    if wants_recorder or wants_trainer:
        _check_records(settings.records_folder)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    map_large_allocations()
    engine = start_engine(settings)
    _spare_garbage_collection()
    with contextlib.ExitStack() as stack:
        stack.callback(engine.close)
        listener = stack.enter_context(_listen(settings.host, settings.port))
        if settings.redis_url is not None:
            redis_url = settings.redis_url.get_secret_value()
        else:
            redis_url = stack.enter_context(embedded_redis(settings.data_dir))
            log.info("measurements go to an embedded server, kept in %s", settings.data_dir)
        if wants_recorder:
            stack.callback(_start_beside("recorder", settings, redis_url).stop)
        if wants_trainer:
            stack.callback(_start_beside("trainer", settings, redis_url).stop)
        _run(_server(settings, engine, redis_url), listener)
    leave_stuck_threads("tlp-versions", "tlp-score", "tlp-read")
    return 0


def _spare_garbage_collection() -> None:
    """Exempt all objects of the start from garbage collection.

    Large bodies cause many full collections. Otherwise each of them would scan these objects, which blocks
    all other threads for longer than a batch takes.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLD)


def _server(settings: Settings, engine: Engine, redis_url: str) -> _Server:
    connections = Connections(limits_of_process())
    config = uvicorn.Config(
        create_app(settings, engine, redis_url),
        http=protocol_of(connections),
        ws="none",
        log_level="warning",
        access_log=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=GRACE_S,
    )
    return _Server(config, engine, connections)


def _log_settings(settings: Settings) -> None:
    """Log the settings, and warn about names and options that have no effect."""
    log.info("settings: %s", settings.model_dump_json())
    known = {f"TLP_{name}".upper() for name in Settings.model_fields}
    for name in sorted(set(filter(lambda n: n.startswith("TLP_"), os.environ)) - known):
        log.warning("%s is no setting and has no effect", name)
    if settings.redis_url is not None:
        for option in ineffective_options(settings.redis_url.get_secret_value()):
            log.warning("TLP_REDIS_URL: the option %r has no effect; the service sets it itself", option)


def _wants_trainer(settings: Settings) -> bool:
    """Return whether this server should start a trainer.

    Raises
    ------
    BadSettings
        If the settings require a trainer and torch is not installed.
    """
    has_torch = importlib.util.find_spec("torch") is not None
    if settings.trainer and not has_torch:
        raise BadSettings("TLP_TRAINER=1: there is no torch to train with; install 'tlp-service[train]'")
    if settings.trainer is not None or settings.redis_url is not None or settings.model is not None:
        return bool(settings.trainer)
    if not has_torch:
        log.info("nothing is learned from measurements: install tlp-service[train] for that")
        return False
    return True


def _check_records(folder: Path) -> None:
    """Check the folder of the record store, because recorder and trainer could not start without it.

    Raises
    ------
    BadSettings
        If the folder cannot be created or written, or holds something else.
    """
    try:
        check_store_path(folder)
        folder.mkdir(parents=True, exist_ok=True)
    except BadRecords as error:
        raise BadSettings(f"TLP_RECORDS: {error}") from None
    except OSError as error:
        raise BadSettings(f"TLP_RECORDS={folder}: {error.strerror}") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise BadSettings(f"TLP_RECORDS={folder}: expected a writable folder, got a read-only one")


def _start_beside(command: str, settings: Settings, redis_url: str) -> Child:
    """Start the recorder or the trainer as a separate process."""
    told = {
        "TLP_REDIS_URL": redis_url,
        "TLP_RECORDS": str(settings.records_folder.absolute()),
        "TLP_REGISTRY": settings.registry_url,
        "TLP_MODEL": "" if settings.model is None else str(settings.model),
    }
    child = Child(f"the {command}", [sys.executable, "-m", "tlp_service", command], {**os.environ, **told})
    child.watch()
    return child


class _Server(uvicorn.Server):
    """A uvicorn server that drains on a signal: running requests are answered, queued ones get 503."""

    def __init__(self, config: uvicorn.Config, engine: Engine, connections: Connections) -> None:
        super().__init__(config)
        self._engine = engine
        self._connections = connections
        self._memory = IdleMemory(lambda: engine.is_busy)
        self._loop: asyncio.AbstractEventLoop | None = None

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().serve(sockets)

    async def on_tick(self, counter: int) -> bool:
        if counter % TICKS_PER_S == 0:
            self._connections.sweep(self.server_state.connections)  # type: ignore[arg-type]  # made by `protocol_of`
            self._memory.give_back()
        return await super().on_tick(counter)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # Drain on the event loop and not here: the signal may interrupt a change of the queue.
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._engine.drain, GRACE_S / 2)
        super().handle_exit(sig, frame)


def _run(server: uvicorn.Server, listener: socket.socket) -> None:
    """Run the server until a signal has ended it gracefully, and return.

    After its shutdown, uvicorn raises the signal again for the handlers that it found. The default handler
    would end the process at once, before the embedded Redis server is stopped.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        server.should_exit = True  # also for a signal before uvicorn installs its handlers

    for stop_signal in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stop_signal, stop)
    host, port = listener.getsockname()[:2]
    try:
        listener.listen(1024)  # not earlier, or clients would connect before the server can answer
    except OSError as error:
        raise BadSettings(f"cannot listen on {host}, port {port}: {error.strerror}") from None
    shown_host = f"[{host}]" if ":" in host else host
    print(f"tlp: listening on http://{shown_host}:{port}", flush=True)
    server.run(sockets=[listener])


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise BadSettings(f"cannot listen on TLP_HOST={host}, TLP_PORT={port}: {error.strerror}") from None
    return listener
