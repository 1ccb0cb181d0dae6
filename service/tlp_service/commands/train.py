"""``tlp train``: train a model version."""

from __future__ import annotations

import argparse
from typing import Any

from tlp_service.commands.arguments import not_negative, path, positive, rate


def add_train(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``tlp train``."""
    add = parser.add_argument
    add(
        "--records",
        type=path,
        nargs="+",
        required=True,
        help="one record store, or tuning logs or folders of them",
    )
    add("--out", type=path, required=True, help="folder that gets the model version")
    add("--model", help="what to train: a model of a family (default: the one that is shipped)")
    add(
        "--from",
        type=path,
        dest="source",
        metavar="VERSION",
        help="folder of the version to begin from: each platform that there are records of gets a network of its own",
    )
    _add_choice_of_records(parser)
    add("--device", default="cpu", help="torch device; under torchrun each process has its own")
    add(
        "--checkpoint",
        type=path,
        help="folder that keeps the progress; an interrupted training goes on from it",
    )
    for name, settings in _FIT_OPTIONS.items():
        add(f"--{name}", **settings)
    parser.set_defaults(run=_train)


def _add_choice_of_records(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--platforms", type=path, help="CSV that maps folders of logs to platforms")
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


#: Options that are fields of `FitSettings`; without them the model's own hold.
_FIT_OPTIONS: dict[str, dict[str, Any]] = {
    "loss": {
        "choices": ("rank", "mse", "combined"),
        "help": "published rank loss; mean squared error; or log error and pairs (default: the model's own)",
    },
    "pairs": {"choices": ("task", "batch"), "help": "where the rank loss forms pairs (task)"},
    "epochs": {"type": positive, "help": "largest number of epochs"},
    "batch": {"type": positive, "help": "candidates a batch"},
    "learning-rate": {"type": rate, "help": "of Adam"},
    "patience": {"type": positive, "help": "epochs without a better validation ranking"},
    "max-number": {"type": float, "help": "train on no task whose rows hold larger numbers (published only)"},
    "max-candidates": {"type": not_negative, "help": "candidates a task gives to one epoch, 0 for all"},
    "seed": {"type": not_negative, "help": "of initialisation and order, and of the split of logs (0)"},
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

    from tlp_service.families.lookup import preset_named
    from tlp_service.records.platform_table import PlatformTable
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
