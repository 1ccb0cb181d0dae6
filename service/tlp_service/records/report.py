"""What a record store holds, as text."""

from __future__ import annotations

from collections import Counter

from tlp_client.records import is_run
from tlp_client.tasks import canonical_workload_key
from tlp_service.records.split import parts_by_workload
from tlp_service.records.store import RecordStore


def describe(store: RecordStore) -> str:
    """Return a table of the platforms: records, failed runs, tasks, and how those of them that have a run that did not fail are split."""
    title = (
        f"{'platform':<24} {'records':>8} {'failed':>7} {'tasks':>6} {'train':>6} {'valid.':>6} {'test':>6}"
    )
    lines = [f"record store {store.folder}, split seed {store.seed}", title]
    for platform in store.platforms:
        rows = store.read(platform, ["workload_key", "error_no", "costs"])
        keys, *runs = (rows.column(name).to_pylist() for name in rows.column_names)
        valid = Counter(key for key, *run in zip(keys, *runs, strict=True) if is_run(*run))
        tasks = {canonical_workload_key(key) for key in set(keys)}
        parts = parts_by_workload({canonical_workload_key(key) for key in valid}, store.seed)
        counts = [list(parts.values()).count(part) for part in ("train", "validation", "test")]
        lines.append(
            f"{platform:<24} {len(rows):>8} {len(rows) - valid.total():>7} {len(tasks):>6} "
            + " ".join(f"{count:>6}" for count in counts)
        )
    return "\n".join(lines)
