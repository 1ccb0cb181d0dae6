"""Argument types and checks that several commands share."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from tlp_service.errors import BadSettings

if TYPE_CHECKING:
    from tlp_service.records.platform_table import PlatformOf


def path(text: str) -> Path:
    """Return a path; refuse an empty one (an unset variable), which would mean the working folder."""
    if not text:
        raise argparse.ArgumentTypeError("expected a path, got ''")
    return Path(text)


def positive(text: str) -> int:
    """Return a whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return int(text)


def not_negative(text: str) -> int:
    """Return a whole number of at least 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 0, got {text!r}")
    return int(text)


def rate(text: str) -> float:
    """Return a number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number above 0, got {text!r}")
    return number


def check_writable(option: str, path: Path | None) -> None:
    """Refuse an output file that cannot be written, before the work begins."""
    if path is not None and (path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK)):
        raise BadSettings(f"{option}: expected a file that can be written, got {path}")


def platform_of(arguments: argparse.Namespace) -> PlatformOf:
    """Return the platform lookup for logs: a table, or one name for all."""
    from tlp_service.records.platform_table import OnePlatform, PlatformTable, check_platform

    if arguments.platforms:
        return PlatformTable.read(arguments.platforms)
    if arguments.platform is not None:
        check_platform(arguments.platform)
    return OnePlatform(arguments.platform)


def status_of(found: Collection[object], otherwise: str) -> int:
    """Return the exit status of a command: 1 if it found nothing, so that a script notices."""
    if not found:
        print(f"tlp: {otherwise}", file=sys.stderr)
    return 0 if found else 1
