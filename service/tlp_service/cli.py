"""The ``tlp`` command. Heavy imports are inside the commands that need them."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from collections.abc import Sequence

from tlp_client.errors import TLPError
from tlp_service.commands.evaluate import add_evaluate
from tlp_service.commands.models import add_models
from tlp_service.commands.records import add_records
from tlp_service.commands.serve import add_recorder, add_serve, add_trainer
from tlp_service.commands.train import add_train
from tlp_service.errors import ServiceFault


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; print errors that a user can fix as one line on stderr, with exit status 2."""
    arguments = _parser().parse_args(argv)
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", datefmt="%H:%M:%S"
    )
    try:
        run = arguments.run
        status: int = run(arguments)
        if sys.stdout is not None:
            sys.stdout.flush()  # otherwise a full disk would be noticed only after the exit status
    except (ServiceFault, TLPError) as error:
        print(f"tlp {arguments.command}: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        extra = "service,cpu" if arguments.command == "serve" else "service,cpu,train"
        print(f"tlp {arguments.command}: {error}; install 'tlp-service[{extra}]'", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        _drop_unwritten()
        return 128 + signal.SIGPIPE
    except OSError as error:  # a path that cannot be written, a disk that is full
        print(f"tlp {arguments.command}: {error}", file=sys.stderr)
        _drop_unwritten()
        return 1
    except KeyboardInterrupt:
        return 130
    return status


def _drop_unwritten() -> None:
    """Discard output that cannot be written.

    Otherwise Python would retry at exit, print an error, and change the exit status.
    """
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tlp", description="Cost-model prediction service for tensor-program tuning."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    add_serve(
        commands.add_parser(
            "serve", help="start the server; settings are TLP_… variables, see docs/operate.md"
        )
    )
    add_train(
        commands.add_parser(
            "train",
            help="train a model version from tuning logs",
            formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        )
    )
    add_evaluate(commands.add_parser("evaluate", help="rank measured records by a model version"))
    add_records(commands.add_parser("records", help="keep tuning logs as a record store"))
    add_recorder(
        commands.add_parser(
            "recorder",
            help="move measurements from the stream into the record store; settings are TLP_… variables",
        )
    )
    add_trainer(
        commands.add_parser(
            "trainer",
            help="train on new measurements in the record store; settings are TLP_… variables",
        )
    )
    add_models(commands.add_parser("models", help="choose which model version serves"))
    return parser
