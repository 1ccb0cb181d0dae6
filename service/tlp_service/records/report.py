"""What a record store holds, as text."""

from __future__ import annotations

import pyarrow.compute as pc

from tlp_client.tasks import canonical_workload_key
from tlp_service.records.split import parts_by_workload
from tlp_service.records.store import RecordStore


def describe(store: RecordStore) -> str:
    """Return a table of the platforms: records, failed runs, tasks and how they are split."""
    title = (
        f"{'platform':<24} {'records':>8} {'failed':>7} {'tasks':>6} {'train':>6} {'valid.':>6} {'test':>6}"
    )
    lines = [f"record store {store.folder}, split seed {store.seed}", title]
    for platform in store.platforms:
        rows = store.read(platform, ["workload_key", "error_no"])
        keys = pc.unique(rows.column("workload_key")).to_pylist()
        parts = parts_by_workload({canonical_workload_key(key) for key in keys}, store.seed)
        counts = [list(parts.values()).count(part) for part in ("train", "validation", "test")]
        failed = pc.sum(pc.not_equal(rows.column("error_no"), 0)).as_py() or 0
        lines.append(
            f"{platform:<24} {len(rows):>8} {failed:>7} {len(parts):>6} "
            + " ".join(f"{count:>6}" for count in counts)
        )
    return "\n".join(lines)
