"""Finds families and models by name: those of this package, and those of other packages by their entry points."""

from __future__ import annotations

import functools
import logging
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from tlp_service.errors import BadSettings, BadVersion
from tlp_service.families.family import Family
from tlp_service.families.loopnest.family import LoopNest
from tlp_service.families.published.family import Published

if TYPE_CHECKING:
    from tlp_service.training.preset import Preset

log = logging.getLogger(__name__)

#: Group of the entry points of other packages.
ENTRY_POINTS = "tlp_service.families"

#: The families of this package.
_OWN: tuple[Family, ...] = (LoopNest(), Published())


def family_named(name: str) -> Family:
    """Return the family that a manifest names.

    Raises
    ------
    BadVersion
        If this environment has none of that name.
    """
    # Looking for entry points reads many files, so the own families come first.
    found = _named(name, _OWN) or _named(name, _others())
    if found is None:
        known = ", ".join(family.name for family in _all())
        raise BadVersion(
            f"features: expected one of {known}, got {name!r}; install the package of this family"
        )
    return found


def preset_named(model: str) -> Preset:
    """Return how a model is trained.

    Raises
    ------
    BadSettings
        If no family has a model of that name.
    """
    for family in _all():
        if model in family.models:
            return family.preset(model)
        if model in family.earlier_names:
            return family.preset(family.models[0])
    known = ", ".join(model for family in _all() for model in family.models)
    raise BadSettings(f"model: expected one of {known}, got {model!r}")


def _named(name: str, families: tuple[Family, ...]) -> Family | None:
    return next((family for family in families if name in (family.name, *family.earlier_names)), None)


def _all() -> tuple[Family, ...]:
    return _OWN + _others()


@functools.cache
def _others() -> tuple[Family, ...]:
    """Return the families of other packages.

    A family that fails to load is logged and skipped, so that it does not stop the others.
    """
    found = []
    for point in entry_points(group=ENTRY_POINTS):
        try:
            found.append(point.load()())
        except Exception:  # whatever a foreign module raises
            log.exception("the model family %s does not load", point.name)
    return tuple(found)
