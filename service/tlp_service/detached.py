"""Runs operations that may never return, such as on a file system whose server is gone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


async def detached(operation: Callable[[], T]) -> T:
    """Run an operation in a daemon thread of its own, and return its result.

    Unlike a thread of `asyncio.to_thread`, it does not keep the process from ending if it hangs.
    """
    future: Future[T] = Future()
    threading.Thread(target=_run, args=(operation, future), name="tlp-detached", daemon=True).start()
    return await asyncio.wrap_future(future)


def _run(operation: Callable[[], T], future: Future[T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = operation()
    except BaseException as error:  # noqa: BLE001  the caller gets it
        future.set_exception(error)
    else:
        future.set_result(result)
