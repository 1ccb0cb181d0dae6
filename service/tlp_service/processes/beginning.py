"""Start-up of the recorder and the trainer, the processes besides the server."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pyarrow as pa

from tlp_service.errors import BadSettings
from tlp_service.records.store import RecordStore
from tlp_service.settings import Settings

#: Maximum seconds for which these processes wait for another writer of the record store, such as an import.
#: Then they log it and try again. It is less than 10 s, after which a server kills a child that does not
#: stop.
_MAX_WAIT_S = 5.0


def begin(settings: Settings, niceness: int) -> tuple[str, RecordStore]:
    """Lower this process's priority, and return the URL of the Redis and the record store.

    The record store is created if it does not exist.

    Raises
    ------
    BadSettings
        If the settings name no Redis, or the folder of the record store cannot be created.
    BadRecords
        If that folder holds something else.
    """
    if settings.redis_url is None:
        raise BadSettings("TLP_REDIS_URL: name the Redis or Valkey of the measurement stream")
    nice = os.nice(niceness)
    if os.getsid(0) == os.getpid():
        # With autogroup scheduling, Linux shares the CPU among sessions, and a nice value counts only within
        # one. This process leads a session, so the nice value must be set for its autogroup as well.
        with contextlib.suppress(OSError):
            Path("/proc/self/autogroup").write_text(str(nice))
    # By default pyarrow uses all cores, which would slow down scoring.
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    if settings.records is None:
        settings.make_data_dir()
    try:
        store = RecordStore.create(settings.records_folder, max_wait_s=_MAX_WAIT_S)
    except OSError as error:
        raise BadSettings(f"TLP_RECORDS={settings.records_folder}: {error.strerror}") from None
    return settings.redis_url.get_secret_value(), store
