"""``tlp models``: manage the registry. Heavy imports are inside functions, as in `tlp_service.cli`."""

from __future__ import annotations

import argparse
import getpass
import json
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tlp_service.errors import BadSettings, BadVersion, UnknownName

if TYPE_CHECKING:
    from tlp_service.versions.journal import Journal
    from tlp_service.versions.registry import Held, Registry

_Run = Callable[["Registry", argparse.Namespace], None]


def add_models(parser: argparse.ArgumentParser) -> None:
    """Add the actions of ``tlp models``."""
    actions = parser.add_subparsers(dest="action", required=True)

    def add(name: str, run: _Run, text: str) -> argparse.ArgumentParser:
        action = actions.add_parser(name, help=text)
        action.add_argument(
            "--registry", help="folder or URL (default: TLP_REGISTRY, or models in TLP_DATA_DIR)"
        )
        action.set_defaults(run=lambda arguments: _run(run, arguments))
        return action

    add("list", _list, "list the versions, newest first").add_argument("--json", action="store_true")
    add("show", _show, "print one version as JSON").add_argument("version")
    diff = add("diff", _diff, "print the differences between two versions")
    diff.add_argument("version")
    diff.add_argument("other")
    publish = add("publish", _publish, "copy a version into the registry, without activating it")
    publish.add_argument("folder", type=Path, help="folder of the version")
    activate = add("activate", _activate, "activate a version")
    activate.add_argument("version")
    activate.add_argument("--force", action="store_true", help="even if it is marked rejected or failed")
    rollback = add("rollback", _rollback, "roll back to the version that was active before")
    for action in (activate, rollback):
        action.add_argument("--reason", default="", help="reason to record in the history")
    prune = add("prune", _prune, "delete versions that are neither new nor recently active")
    prune.add_argument(
        "--keep", type=_count, default=10, help="number of newest versions to keep (default: 10)"
    )
    prune.add_argument(
        "--recent", type=_count, default=10, help="number of last active versions to keep (default: 10)"
    )


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 0, got {text!r}")
    return int(text)


def _run(run: _Run, arguments: argparse.Namespace) -> int:
    from tlp_service.settings import read_settings
    from tlp_service.versions.registry import Registry

    url, settings = arguments.registry, None
    if not url:
        settings = read_settings()
        url = settings.registry_url
    if "://" not in url and not Path(url).is_dir() and arguments.action != "publish":
        raise BadSettings(f"there is no registry at {url}; name the server's with --registry or TLP_DATA_DIR")
    if settings is not None and settings.registry is None:
        settings.make_data_dir()
    try:
        run(Registry(url), arguments)
    except BrokenPipeError:  # the reader of the output has closed the pipe
        raise
    except OSError as error:
        raise BadSettings(f"the registry {url}: {error}") from None
    return 0


def _list(registry: Registry, arguments: argparse.Namespace) -> None:
    held = registry.versions()
    if arguments.json:
        print(json.dumps([_document(h) for h in held], indent=2))
        return
    rows = [
        (
            h.manifest.version,
            h.manifest.created[:19],
            "active" if h.is_active else h.mark.state if h.mark else "",
            " ".join(dict.fromkeys(n.platform_kind for n in h.manifest.networks)),
            h.mark.reason if h.mark else "",
        )
        for h in held
    ]
    _print_table(("version", "created", "state", "kinds", "why"), rows)


def _document(held: Held) -> Any:
    import msgspec

    return msgspec.to_builtins({"active": held.is_active, "mark": held.mark, "manifest": held.manifest})


def _show(registry: Registry, arguments: argparse.Namespace) -> None:
    print(json.dumps(_document(registry.held(arguments.version)), indent=2))


def _diff(registry: Registry, arguments: argparse.Namespace) -> None:
    differing = registry.diff(arguments.version, arguments.other)
    rows = [(name, _short(one), _short(other)) for name, (one, other) in differing.items()]
    _print_table(("", arguments.version, arguments.other), rows)


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else "" if value is None else json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _publish(registry: Registry, arguments: argparse.Namespace) -> None:
    print(registry.publish(arguments.folder))


def _activate(registry: Registry, arguments: argparse.Namespace) -> None:
    before = registry.journal().active
    _tell(registry.activate(arguments.version, _who(), arguments.reason, arguments.force))
    _warn_of_lost_platforms(registry, before, arguments.version)


def _warn_of_lost_platforms(registry: Registry, before: str | None, now: str) -> None:
    """Warn about platforms that the previous version was trained on and this one is not.

    They are scored like any other platform of their kind.
    """
    if before is None:
        return
    try:
        lost = registry.manifest(before).platforms - registry.manifest(now).platforms
    except (UnknownName, BadVersion):  # it is gone or damaged, which may be the reason for the change
        return
    if lost:
        print(f"warning: not trained on {', '.join(sorted(lost))}, as {before} was", file=sys.stderr)


def _rollback(registry: Registry, arguments: argparse.Namespace) -> None:
    _tell(registry.rollback(_who(), arguments.reason))


def _prune(registry: Registry, arguments: argparse.Namespace) -> None:
    pruned = registry.prune(arguments.keep, arguments.recent)
    print("\n".join(pruned) if pruned else "nothing to delete")


def _tell(journal: Journal) -> None:
    """Print the active version, and notify the servers if there is a Redis; otherwise they poll."""
    from tlp_service.settings import read_settings
    from tlp_service.versions.hints import tell

    url = read_settings().redis_url
    if url is not None:
        tell(url.get_secret_value(), journal.active)
    print(journal.active)


def _who() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user need not have a name
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


def _print_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    widths = [max(len(row[n]) for row in (heads, *rows)) for n in range(len(heads))]
    for row in (heads, *rows):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
