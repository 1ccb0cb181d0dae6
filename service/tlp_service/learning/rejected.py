"""Deletes versions that the trainer made and that serve nobody: a platform may be refused again and again."""

from __future__ import annotations

import logging
from collections.abc import Callable

from tlp_service.errors import BadVersion
from tlp_service.versions.registry import Held, Registry

log = logging.getLogger(__name__)

#: Rejected versions of the trainer's own making that a registry keeps, the newest ones; each takes several megabytes.
MAX_REJECTED = 20
#: What the manifest of a version holds under `training` if a step of learning made it.
VERDICT = "verdict"


def delete_rejected(registry: Registry) -> None:
    """Delete the oldest versions that the gate rejected. What serves or served lately stays, and all that a person published."""
    _delete(registry, MAX_REJECTED, _is_rejected)


def withdraw(registry: Registry, version: str) -> None:
    """Delete a version that was published just now and is not wanted any more."""
    _delete(registry, 0, lambda held: held.manifest.version == version and held.mark is None)


def _is_rejected(held: Held) -> bool:
    """Return whether a step of learning made a version and the gate rejected it."""
    return held.mark is not None and held.mark.state == "rejected" and VERDICT in held.manifest.training


def _delete(registry: Registry, keep: int, among: Callable[[Held], bool]) -> None:
    try:
        if deleted := registry.prune(keep, among=among):
            log.info("deleted rejected versions: %s", ", ".join(deleted))
    except (OSError, BadVersion) as error:  # tried again after the next one
        log.warning("rejected versions are not deleted: %s", error)
