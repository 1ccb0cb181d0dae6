"""A text report of the contents of a record store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TypeAlias

from tlp_client.records import is_run
from tlp_service.records.reader import stored_workload
from tlp_service.records.split import parts_by_workload
from tlp_service.records.store import RecordStore

_TITLE = f"{'platform':<24} {'records':>8} {'failed':>7} {'tasks':>6} {'train':>6} {'valid.':>6} {'test':>6}"


#: Workload key as it is stored, and dialect.
_Key: TypeAlias = tuple[str, "str | None"]


def title_lines(store: RecordStore) -> list[str]:
    """Return the lines above those of the platforms."""
    return [f"record store {store.folder}, split seed {store.seed}", _TITLE]


def platform_lines(store: RecordStore) -> Iterator[str]:
    """Yield a line for each platform with readable records.

    The line contains the number of records, failed runs and tasks, and how tasks with at least one valid run are split.
    """
    for platform in store.platforms:
        # Workload key, not canonical, and dialect -> number of records, and of valid runs.
        records: Counter[_Key] = Counter()
        valid: Counter[_Key] = Counter()
        for batch in store.batches(platform, ["workload_key", "dialect", "error_no", "costs"]):
            of_keys, dialects, *runs = (column.to_pylist() for column in batch.columns)
            keys = list(zip(of_keys, dialects, strict=True))
            records.update(keys)
            valid.update(key for key, *run in zip(keys, *runs, strict=True) if is_run(*run))
        if records:
            yield _line(platform, records, valid, store.seed)


def _line(platform: str, records: Counter[_Key], valid: Counter[_Key], seed: int) -> str:
    tasks = {stored_workload(*key) for key in records}
    parts = parts_by_workload({stored_workload(*key) for key in valid}, seed)
    counts = [list(parts.values()).count(part) for part in ("train", "validation", "test")]
    failed = records.total() - valid.total()
    return f"{platform:<24} {records.total():>8} {failed:>7} {len(tasks):>6} " + " ".join(
        f"{count:>6}" for count in counts
    )
