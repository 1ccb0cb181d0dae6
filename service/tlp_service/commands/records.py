"""``tlp records``: tuning logs as a record store."""

from __future__ import annotations

import argparse

from tlp_service.commands.arguments import not_negative, path, platform_of, status_of


def add_records(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``tlp records``."""
    actions = parser.add_subparsers(dest="action", required=True)
    importer = actions.add_parser("import", help="read tuning logs into a record store")
    importer.add_argument("logs", type=path, nargs="+", help="tuning logs or folders of them")
    importer.add_argument(
        "--store", type=path, required=True, help="folder of the store; created if it does not exist"
    )
    importer.add_argument("--platforms", type=path, help="CSV that maps folders to platforms")
    importer.add_argument("--platform", help="platform of all records, without --platforms")
    importer.add_argument(
        "--seed", type=not_negative, default=0, help="seed of the split of a new store (default: 0)"
    )
    importer.add_argument(
        "--processes", type=not_negative, default=0, help="reader processes; 0: one per CPU (default: 0)"
    )
    importer.set_defaults(run=_import_records)
    show = actions.add_parser("show", help="print what a record store holds")
    show.add_argument("store", type=path, help="folder of the store")
    show.set_defaults(run=_show_records)


def _import_records(arguments: argparse.Namespace) -> int:
    from tlp_service.records.files import log_files
    from tlp_service.records.importer import import_logs
    from tlp_service.records.store import RecordStore

    platforms = platform_of(arguments)
    paths = list(log_files(arguments.logs))
    store = RecordStore.create(arguments.store, arguments.seed)
    summary, added = import_logs(paths, store, platforms, arguments.processes)
    print(summary.report(added))
    return status_of(summary.platforms, "no record in the logs")


def _show_records(arguments: argparse.Namespace) -> int:
    from tlp_service.records.report import platform_lines, title_lines
    from tlp_service.records.store import RecordStore

    store = RecordStore(arguments.store)
    expected = store.platforms
    lines = list(platform_lines(store))
    print("\n".join([*title_lines(store), *lines]))
    return status_of(lines, "no file of records can be read") if expected else 0
