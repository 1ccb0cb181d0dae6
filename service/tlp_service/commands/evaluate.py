"""``tlp evaluate``: rank measured records by a model version."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tlp_service.commands.arguments import check_writable, path, platform_of, positive, status_of
from tlp_service.errors import BadSettings

if TYPE_CHECKING:
    from tlp_client.logs import RefusedLine
    from tlp_client.records import Record
    from tlp_service.evaluation.evaluate import Evaluation


def add_evaluate(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``tlp evaluate``."""
    add = parser.add_argument
    add("records", type=path, nargs="+", help="tuning logs, folders of them, or one record store")
    add("--model", type=path, help="folder of the model version (default: the shipped one)")
    add("--platforms", type=path, help="CSV that maps folders of logs to platforms")
    add("--platform", help="platform of all records of logs, without --platforms")
    add("--part", choices=("train", "validation", "test"), help="only this part of a record store")
    add(
        "--min-candidates",
        type=positive,
        default=16,
        help="tasks with fewer are left out (default: 16)",
    )
    add("--json", type=path, help="file for all figures, as JSON")
    add("--plot", type=path, metavar="FILE.png", help="file for a plot of the figures by platform")
    parser.set_defaults(run=_evaluate)


def _evaluate(arguments: argparse.Namespace) -> int:
    import json

    from tlp_service.evaluation.evaluate import evaluate
    from tlp_service.records.files import log_files, log_records
    from tlp_service.records.reader import part_of_store, stored_records
    from tlp_service.records.store import RecordStore
    from tlp_service.records.store_path import is_store
    from tlp_service.scoring.scorer import Scorer
    from tlp_service.settings import shipped_model

    for option in ("json", "plot"):
        check_writable(f"--{option}", getattr(arguments, option))
    write_plot = _plot_writer() if arguments.plot else None
    refused: list[RefusedLine] = []
    records: Iterator[tuple[str | None, Record]]
    if len(arguments.records) == 1 and is_store(arguments.records[0]):
        store = RecordStore(arguments.records[0])
        records = part_of_store(store, arguments.part) if arguments.part else stored_records(store)
    elif arguments.part:
        raise BadSettings("--part: only a record store is split into parts")
    else:
        records = log_records(log_files(arguments.records), platform_of(arguments), refused)
    found = evaluate(Scorer(arguments.model or shipped_model()), records, arguments.min_candidates)
    found.left_out.update(f"refused lines, {line.cause}" for line in refused)
    print(found.table())
    if arguments.json:
        arguments.json.write_text(json.dumps(found.to_json(), indent=2) + "\n")
    if write_plot and found.tasks:
        write_plot(found, arguments.plot)
    return status_of(found.tasks, "no task with enough candidates to rank")


def _plot_writer() -> Callable[[Evaluation, Path], None]:
    # Before the evaluation, which may take minutes.
    try:
        from tlp_service.evaluation.plot import write_plot
    except ModuleNotFoundError as error:
        raise BadSettings(f"--plot: {error}; install 'tlp-service[plot]'") from None
    return write_plot
