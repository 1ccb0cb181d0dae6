"""``tlp serve``, and the processes beside it: ``tlp recorder`` and ``tlp trainer``."""

from __future__ import annotations

import argparse

from tlp_service.commands.arguments import path


def add_serve(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``tlp serve``."""
    parser.add_argument("--host", help="address to listen on (TLP_HOST)")
    parser.add_argument("--port", type=int, help="port to listen on, 0 for a free one (TLP_PORT)")
    parser.add_argument(
        "--model",
        type=path,
        help="folder of the model version to serve, instead of the registry's (TLP_MODEL)",
    )
    parser.add_argument(
        "--data-dir",
        type=path,
        help="folder of the embedded measurement stream, the record store and the registry (TLP_DATA_DIR)",
    )
    parser.set_defaults(run=_serve)


def _serve(arguments: argparse.Namespace) -> int:
    from tlp_service.processes.server import serve
    from tlp_service.settings import read_settings

    given = {name: getattr(arguments, name) for name in ("host", "port", "model", "data_dir")}
    return serve(read_settings(**{name: value for name, value in given.items() if value is not None}))


def add_recorder(parser: argparse.ArgumentParser) -> None:
    """Let ``tlp recorder`` run; it has no arguments."""
    parser.set_defaults(run=_record)


def _record(arguments: argparse.Namespace) -> int:
    from tlp_service.processes.recorder import record
    from tlp_service.settings import read_settings

    return record(read_settings())


def add_trainer(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``tlp trainer``."""
    parser.add_argument(
        "--once",
        action="store_true",
        help="check once for new records, and train a version if there are enough",
    )
    parser.set_defaults(run=_learn)


def _learn(arguments: argparse.Namespace) -> int:
    from tlp_service.processes.trainer import run_trainer
    from tlp_service.settings import read_settings

    return run_trainer(read_settings(), arguments.once)
