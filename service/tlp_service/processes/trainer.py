"""``tlp trainer``: learns beside the servers, at a lower priority than theirs."""

from __future__ import annotations

import importlib.util
import logging
import signal
import threading
from types import FrameType

from redis.exceptions import RedisError

from tlp_service.errors import BadSettings
from tlp_service.learning.trainer import Trainer
from tlp_service.processes.beginning import begin
from tlp_service.settings import Settings
from tlp_service.versions.registry import Registry

log = logging.getLogger(__name__)

#: Behind whoever scores, but not for good: where workers keep all cores busy, it has to get on, too.
_NICENESS = 5


def _leave(number: int, frame: FrameType | None) -> None:
    """Leave whatever is being trained: the next trainer begins anew from the store."""
    for again in (signal.SIGINT, signal.SIGTERM):
        signal.signal(again, signal.SIG_IGN)
    raise SystemExit(0)


def run_trainer(settings: Settings, once: bool) -> int:
    """Train until a signal comes, or look once; return the exit status.

    Raises
    ------
    BadSettings, BadRecords
        See `begin`; the first also if Redis cannot be reached at the only look.
    ModuleNotFoundError
        If torch is not installed: that it is imported later must not hide it.
    """
    if importlib.util.find_spec("torch") is None:
        raise ModuleNotFoundError("No module named 'torch'")
    url, store = begin(settings, _NICENESS)
    registry = Registry(settings.registry_url)
    trainer = Trainer(
        url, store, registry, settings.train_records, settings.train_s, settings.trainer_threads
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave)
    logging.getLogger("tlp_service.training.fit").setLevel(logging.WARNING)  # hundreds of epochs a step
    try:
        if not once:
            trainer.run(threading.Event())
        elif not trainer.look(max_trained=None):
            log.info("nothing is to be learned: too little is new, or another trainer is at it")
    except RedisError as error:  # `run` goes on
        raise BadSettings(f"TLP_REDIS_URL: {error}") from None
    finally:
        trainer.close()
    return 0
