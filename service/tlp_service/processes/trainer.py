"""``tlp trainer``: trains new versions, at a lower priority than the servers."""

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

#: Nice value of the trainer. It yields to scoring, but must still make progress when workers keep all cores
#: busy.
_NICENESS = 5


def _leave(number: int, frame: FrameType | None) -> None:
    """Exit at once, even during training; the next trainer starts again from the store."""
    for again in (signal.SIGINT, signal.SIGTERM):
        signal.signal(again, signal.SIG_IGN)
    raise SystemExit(0)


def run_trainer(settings: Settings, once: bool) -> int:
    """Train until a signal arrives, or check once for new records; return the exit status.

    Raises
    ------
    BadSettings, BadRecords
        See `begin`. With `once`, also `BadSettings` if Redis is not reachable.
    ModuleNotFoundError
        If torch is not installed. It is checked here because it is imported only later.
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
