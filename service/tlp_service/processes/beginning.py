"""What the processes beside the server, recorder and trainer, begin with."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pyarrow as pa

from tlp_service.errors import BadSettings
from tlp_service.records.store import RecordStore
from tlp_service.settings import Settings

#: Seconds for which these processes wait for another one that writes in the record store, such as an import; then they say so and try again.
#: A server ends a child that has not stopped 10 s after it was told to.
_MAX_WAIT_S = 5.0


def begin(settings: Settings, niceness: int) -> tuple[str, RecordStore]:
    """Lower this process's priority, and return the URL of the Redis and the record store, made if need be.

    Raises
    ------
    BadSettings
        If no Redis is named, or the folder of the record store cannot be made.
    BadRecords
        If that folder holds something else.
    """
    if settings.redis_url is None:
        raise BadSettings("TLP_REDIS_URL: name the Redis or Valkey of the measurement stream")
    nice = os.nice(niceness)
    if os.getsid(0) == os.getpid():
        # Where Linux shares the processor among sessions (autogroup) a nice value counts inside of one only, and this is one.
        with contextlib.suppress(OSError):
            Path("/proc/self/autogroup").write_text(str(nice))
    # Of its own accord pyarrow takes all cores, and so from those that score.
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    if settings.records is None:
        settings.make_data_dir()
    try:
        store = RecordStore.create(settings.records_folder, max_wait_s=_MAX_WAIT_S)
    except OSError as error:
        raise BadSettings(f"TLP_RECORDS={settings.records_folder}: {error.strerror}") from None
    return settings.redis_url.get_secret_value(), store
