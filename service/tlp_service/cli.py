"""The ``tlp`` command. Heavy imports stand inside the commands that need them."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tlp_client.errors import TLPError
from tlp_service.errors import BadSettings, ServiceFault
from tlp_service.versions.command import add_models

if TYPE_CHECKING:
    from tlp_client.logs import RefusedLine
    from tlp_client.records import Record
    from tlp_service.evaluation.evaluate import Evaluation
    from tlp_service.records.platforms import PlatformOf


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; errors a user can mend are one line on stderr and exit status 2."""
    arguments = _parser().parse_args(argv)
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", datefmt="%H:%M:%S"
    )
    try:
        run = arguments.run
        status: int = run(arguments)
        if sys.stdout is not None:
            sys.stdout.flush()  # or a full disk would be seen only after the exit status
    except (ServiceFault, TLPError) as error:
        print(f"tlp {arguments.command}: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        extra = "service,cpu" if arguments.command == "serve" else "service,cpu,train"
        print(f"tlp {arguments.command}: {error}; install 'tlp-service[{extra}]'", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader has seen enough, such as `head`
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
    """Drop output that cannot be written. Python would try again when it ends, complain, and change the exit status."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tlp", description="Cost-model prediction service for tensor-program tuning."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    _add_serve(
        commands.add_parser("serve", help="start the server; settings are TLP_… variables, see README")
    )
    _add_train(
        commands.add_parser(
            "train",
            help="train a model version from tuning logs",
            formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        )
    )
    _add_evaluate(commands.add_parser("evaluate", help="rank measured records by a model version"))
    _add_records(commands.add_parser("records", help="keep tuning logs as a record store"))
    recorder = commands.add_parser(
        "recorder",
        help="move measurements from the stream into the record store, where no server does; settings are TLP_… variables",
    )
    recorder.set_defaults(run=_record)
    trainer = commands.add_parser(
        "trainer",
        help="learn from the record store when enough was measured; settings are TLP_… variables",
    )
    trainer.add_argument("--once", action="store_true", help="look once, and make a version if it is time")
    trainer.set_defaults(run=_learn)
    add_models(commands.add_parser("models", help="choose which model version serves"))
    return parser


def _add_evaluate(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("records", type=_path, nargs="+", help="tuning logs, folders of them, or one record store")
    add("--model", type=_path, help="folder of the model version (default: the shipped one)")
    add("--platforms", type=_path, help="CSV that maps folders of logs to platforms")
    add("--platform", help="platform of all records of logs, where there is no --platforms")
    add("--part", choices=("train", "validation", "test"), help="only this part of a record store")
    add(
        "--min-candidates",
        type=_positive,
        default=16,
        help="tasks with fewer are left out (default: 16)",
    )
    add("--json", type=_path, help="file that gets all figures")
    add("--plot", type=_path, metavar="FILE.png", help="picture that gets the figures by platform")
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
        _check_writable(f"--{option}", getattr(arguments, option))
    write_plot = _plot_writer() if arguments.plot else None
    refused: list[RefusedLine] = []
    records: Iterator[tuple[str | None, Record]]
    if len(arguments.records) == 1 and is_store(arguments.records[0]):
        store = RecordStore(arguments.records[0])
        records = part_of_store(store, arguments.part) if arguments.part else stored_records(store)
    elif arguments.part:
        raise BadSettings("--part: only a record store is split into parts")
    else:
        records = log_records(log_files(arguments.records), _platform_of(arguments), refused)
    found = evaluate(Scorer(arguments.model or shipped_model()), records, arguments.min_candidates)
    found.left_out.update(f"refused lines, {line.cause}" for line in refused)
    print(found.table())
    if arguments.json:
        arguments.json.write_text(json.dumps(found.to_json(), indent=2) + "\n")
    if write_plot and found.tasks:
        write_plot(found, arguments.plot)
    return _done(found.tasks, "no task with enough candidates to rank")


def _check_writable(option: str, path: Path | None) -> None:
    """Refuse a file that cannot be written, before the work whose result it gets."""
    if path is not None and (path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK)):
        raise BadSettings(f"{option}: expected a file that can be written, got {path}")


def _plot_writer() -> Callable[[Evaluation, Path], None]:
    # Before the evaluation, which may take minutes.
    try:
        from tlp_service.evaluation.plot import write_plot
    except ModuleNotFoundError as error:
        raise BadSettings(f"--plot: {error}; install 'tlp-service[plot]'") from None
    return write_plot


def _platform_of(arguments: argparse.Namespace) -> PlatformOf:
    from tlp_service.records.platforms import OnePlatform, PlatformTable, check_platform

    if arguments.platforms:
        return PlatformTable.read(arguments.platforms)
    if arguments.platform is not None:
        check_platform(arguments.platform)
    return OnePlatform(arguments.platform)


def _add_records(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True)
    importer = actions.add_parser("import", help="read tuning logs into a record store")
    importer.add_argument("logs", type=_path, nargs="+", help="tuning logs or folders of them")
    importer.add_argument("--store", type=_path, required=True, help="folder of the store, made if need be")
    importer.add_argument("--platforms", type=_path, help="CSV that maps folders to platforms")
    importer.add_argument("--platform", help="platform of all records, where there is no --platforms")
    importer.add_argument(
        "--seed", type=_not_negative, default=0, help="of the split of a new store (default: 0)"
    )
    importer.add_argument(
        "--processes", type=_not_negative, default=0, help="that read; 0 for the CPUs (default: 0)"
    )
    importer.set_defaults(run=_import_records)
    show = actions.add_parser("show", help="print what a record store holds")
    show.add_argument("store", type=_path, help="folder of the store")
    show.set_defaults(run=_show_records)


def _import_records(arguments: argparse.Namespace) -> int:
    from tlp_service.records.files import log_files
    from tlp_service.records.importer import import_logs
    from tlp_service.records.store import RecordStore

    platform_of = _platform_of(arguments)
    paths = list(log_files(arguments.logs))
    store = RecordStore.create(arguments.store, arguments.seed)
    summary, added = import_logs(paths, store, platform_of, arguments.processes)
    print(summary.report(added))
    return _done(summary.platforms, "no record in the logs")


def _done(found: Collection[object], otherwise: str) -> int:
    """Return the exit status of a command that told what it found: a script must not take nothing for success."""
    if not found:
        print(f"tlp: {otherwise}", file=sys.stderr)
    return 0 if found else 1


def _show_records(arguments: argparse.Namespace) -> int:
    from tlp_service.records.report import platform_lines, title_lines
    from tlp_service.records.store import RecordStore

    store = RecordStore(arguments.store)
    expected = store.platforms
    lines = list(platform_lines(store))
    print("\n".join([*title_lines(store), *lines]))
    return _done(lines, "no file of records can be read") if expected else 0


def _add_serve(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", help="address to listen on (TLP_HOST)")
    parser.add_argument("--port", type=int, help="port to listen on, 0 for a free one (TLP_PORT)")
    parser.add_argument(
        "--model",
        type=_path,
        help="folder of the model version to serve, instead of the registry's (TLP_MODEL)",
    )
    parser.add_argument(
        "--data-dir",
        type=_path,
        help="folder of the embedded measurement stream, the record store and the registry (TLP_DATA_DIR)",
    )
    parser.set_defaults(run=_serve)


def _serve(arguments: argparse.Namespace) -> int:
    from tlp_service.serve import serve
    from tlp_service.settings import read_settings

    given = {name: getattr(arguments, name) for name in ("host", "port", "model", "data_dir")}
    return serve(read_settings(**{name: value for name, value in given.items() if value is not None}))


def _record(arguments: argparse.Namespace) -> int:
    from tlp_service.learning.recording import record
    from tlp_service.settings import read_settings

    return record(read_settings())


def _learn(arguments: argparse.Namespace) -> int:
    from tlp_service.learning.trainer import run_trainer
    from tlp_service.settings import read_settings

    return run_trainer(read_settings(), arguments.once)


def _add_train(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--records",
        type=_path,
        nargs="+",
        required=True,
        help="one record store, or tuning logs or folders of them",
    )
    add("--out", type=_path, required=True, help="folder that gets the model version")
    add("--model", help="what to train: a model of a family (default: the one that is shipped)")
    add(
        "--from",
        type=_path,
        dest="source",
        metavar="VERSION",
        help="folder of the version to begin from: each platform that there are records of gets a network of its own",
    )
    add("--platforms", type=_path, help="CSV that maps folders of logs to platforms")
    add(
        "--only-shippable", action="store_true", help="use only rows of --platforms with may_ship_weights=yes"
    )
    add(
        "--platform",
        help="platform of all records of logs, where there is no --platforms; those of a store to use, separated by commas",
    )
    add("--without", nargs="+", default=[], metavar="PLATFORM", help="platforms whose records are not used")
    add(
        "--share",
        type=_share,
        nargs="+",
        default=[],
        metavar="PLATFORM=SHARE",
        help="train on this share of the candidates of a platform's tasks only, e.g. k80=0.07",
    )
    add(
        "--split",
        choices=("workload", "source"),
        default="workload",
        help="what a store's split holds together: the records of a workload, or also the workloads of a log",
    )
    add("--kinds", nargs="+", choices=("cpu", "gpu"), default=["cpu", "gpu"], help="platform kinds to train")
    add("--device", default="cpu", help="torch device; under torchrun each process has its own")
    add(
        "--checkpoint",
        type=_path,
        help="folder that keeps the progress; an interrupted training goes on from it",
    )
    for name, settings in _FIT_OPTIONS.items():
        add(f"--{name}", **settings)
    parser.set_defaults(run=_train)


def _path(text: str) -> Path:
    if not text:  # of a variable that is not set, say; Path takes it for the working folder
        raise argparse.ArgumentTypeError("expected a path, got ''")
    return Path(text)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return int(text)


def _not_negative(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 0, got {text!r}")
    return int(text)


def _rate(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number above 0, got {text!r}")
    return number


#: Options that are fields of `FitSettings`; without them the model's own hold.
_FIT_OPTIONS: dict[str, dict[str, Any]] = {
    "loss": {
        "choices": ("rank", "mse", "combined"),
        "help": "published rank loss; mean squared error; or log error and pairs (default: the model's own)",
    },
    "pairs": {"choices": ("task", "batch"), "help": "where the rank loss forms pairs (task)"},
    "epochs": {"type": _positive, "help": "largest number of epochs"},
    "batch": {"type": _positive, "help": "candidates a batch"},
    "learning-rate": {"type": _rate, "help": "of Adam"},
    "patience": {"type": _positive, "help": "epochs without a better validation ranking"},
    "max-number": {"type": float, "help": "train on no task whose rows hold larger numbers (published only)"},
    "max-candidates": {"type": _not_negative, "help": "candidates a task gives to one epoch, 0 for all"},
    "seed": {"type": _not_negative, "help": "of initialisation and order, and of the split of logs (0)"},
}


def _share(text: str) -> tuple[str, float]:
    platform, _, named = text.partition("=")
    try:
        share = float(named)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise argparse.ArgumentTypeError(
            f"expected PLATFORM=SHARE with a share above 0 and at most 1, got {text!r}"
        )
    return platform, share


def _train(arguments: argparse.Namespace) -> int:
    import dataclasses

    from tlp_service.families import preset_named
    from tlp_service.records.platforms import PlatformTable
    from tlp_service.settings import DEFAULT_MODEL
    from tlp_service.training.train import TrainCommand, train

    table = arguments.platforms and PlatformTable.read(arguments.platforms, arguments.only_shippable)
    preset = preset_named(arguments.model or DEFAULT_MODEL)
    names = [name.replace("-", "_") for name in _FIT_OPTIONS]
    given = {name: getattr(arguments, name) for name in names if getattr(arguments, name) is not None}
    if arguments.source is not None:
        given = {**preset.adapting, **given} | ({"fewest_steps": 0} if "epochs" in given else {})
    version = train(
        TrainCommand(
            records=tuple(arguments.records),
            out=arguments.out,
            preset=preset,
            fit=dataclasses.replace(preset.settings, **given),
            platforms=table,
            platform=arguments.platform,
            without=tuple(arguments.without),
            kinds=tuple(arguments.kinds),
            source=arguments.source,
            share=dict(arguments.share),
            split=arguments.split,
            device=arguments.device,
            checkpoint=arguments.checkpoint,
        )
    )
    print(version)
    return 0
