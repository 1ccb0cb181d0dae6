"""Chooses and loads the version with which a server starts."""

from __future__ import annotations

import logging
import socket
from pathlib import Path

from tlp_service.errors import BadSettings, BadVersion
from tlp_service.inference.network import usable_cpus
from tlp_service.scoring.scorer import Scorer
from tlp_service.serving.calibration import Calibration, calibrate
from tlp_service.serving.loader import MAX_CPU_S, VersionLoader
from tlp_service.settings import Settings, shipped_model
from tlp_service.versions.faults import without_folder
from tlp_service.versions.manifest import read_manifest
from tlp_service.versions.registry import Registry

log = logging.getLogger(__name__)


def load_first(settings: Settings, registry: Registry) -> tuple[Scorer, Calibration]:
    """Load the first version, and calibrate how it runs fastest.

    It is the version in the settings, or else the registry's active one, or else the shipped one.

    Raises
    ------
    BadSettings
        If the registry can't be read, or the device is not available.
    BadVersion
        If the named or the shipped version can't be loaded. If the active version can't be loaded, it is
        marked as failed, and the one before it is loaded.
    """
    if settings.model is not None:
        return _load(settings, settings.model)
    _offer_shipped(registry)
    try:
        while (active := registry.journal().active) is not None:
            folder = Path(active)  # used in messages if the checkout fails
            try:
                with registry.checkout(active) as folder:
                    return _load(settings, folder, is_tried=active != shipped_model().name)
            except BadVersion as error:
                log.error("version %s can't be loaded: %s", active, error)
                reason = without_folder(str(error), folder)
                registry.mark(active, "failed", f"on {socket.gethostname()}: {reason}")
    except OSError as error:
        raise BadSettings(f"TLP_REGISTRY={settings.registry_url}: {error}") from None
    return _load(settings, shipped_model())


def _offer_shipped(registry: Registry) -> None:
    """Publish the shipped version, and activate it if none is active, so that a roll-back is possible."""
    shipped = shipped_model()
    try:
        journal = registry.begin(registry.publish(shipped), "server")
    except OSError as error:
        log.warning("the registry can't be written: %s", error)
        return
    if journal.active != shipped.name:
        log.info(
            "the package brings version %s; the registry's active one is %s", shipped.name, journal.active
        )


def _load(settings: Settings, folder: Path, is_tried: bool = False) -> tuple[Scorer, Calibration]:
    """Load a version; if `is_tried`, first try it in a separate process, since it is not trusted."""
    cpus = settings.threads or usable_cpus()
    if is_tried:
        calibration = VersionLoader(settings.device, cpus, MAX_CPU_S).calibrate(folder, settings.chunk)
    else:
        probed = read_manifest(folder).networks[0]
        calibration = calibrate(folder, probed, settings.device, cpus, settings.chunk)
    scorer = Scorer(folder, settings.device, calibration.threads)
    log.info("serving version %s on %s, %s", scorer.manifest.version, scorer.provider, calibration)
    return scorer, calibration
