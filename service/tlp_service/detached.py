"""Operations that may never return, such as on a file system whose server is gone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


async def detached(operation: Callable[[], T]) -> T:
    """Return what an operation returns, which runs in a thread of its own.

    Unlike a thread of `asyncio.to_thread` it is not waited for when the process ends, so one that hangs keeps no server from stopping.
    """
    future: Future[T] = Future()
    threading.Thread(target=_run, args=(operation, future), name="tlp-detached", daemon=True).start()
    return await asyncio.wrap_future(future)


def _run(operation: Callable[[], T], future: Future[T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = operation()
    except BaseException as error:  # noqa: BLE001  it is the caller's
        future.set_exception(error)
    else:
        future.set_result(result)
