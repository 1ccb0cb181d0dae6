"""Prediction error for Prometheus, as the recorder reports it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import islice
from typing import Annotated, Any

import msgspec
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from tlp_service.measurements.stream import QUALITY

log = logging.getLogger(__name__)

#: Maximum number of platforms, and of versions per platform, with a series.
#: The bound is needed since clients name platforms.
_MAX_PLATFORMS, _MAX_VERSIONS = 64, 4

#: Figure -> help text of its gauge.
_GAUGES = {
    "measured": "Measured candidates in the window.",
    "failed_share": "Share of the runs in the window that failed.",
    "outlier_share": "Share of the measurements in the window whose cost cannot be a run time; "
    "the other figures leave them out.",
    "pair_accuracy": "Share of the pairs of candidates inside a task that the scores order correctly, mean over tasks.",
    "kendall_tau": "Kendall's tau-b of scores and speeds inside tasks, mean over tasks.",
    "top1_regret": "Extra run time of the best-scored candidate of a search round over the fastest one, "
    "as a share of the latter; at most 9 per round, mean over rounds.",
    "top5_regret": "As top1_regret, for the fastest of the five best-scored candidates.",
    "drifting": "1 if the version orders candidates worse than when it was accepted, beyond chance; else 0.",
}


#: A count that a float represents exactly; a JSON integer may have hundreds of digits.
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class _Figures(msgspec.Struct):
    """The figures that have a gauge; a recorder of another release may report others."""

    measured: _Count
    serving: bool
    failed_share: float | None = None
    outlier_share: float | None = None
    pair_accuracy: float | None = None
    kendall_tau: float | None = None
    top1_regret: float | None = None
    top5_regret: float | None = None
    drifting: bool | None = None


class _Report(msgspec.Struct):
    platforms: dict[str, dict[str, _Figures]]
    time: float | None = None


def decode_quality(report: bytes | None) -> dict[str, Any]:
    """Return the report of the recorder; a document without platforms if there is none that can be read."""
    if report is not None:
        try:
            document: dict[str, Any] = msgspec.json.decode(report)
            msgspec.convert(document, _Report)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            log.warning("the value of %s is not a report of prediction error", QUALITY)
        else:
            return document
    return {"time": None, "serving": None, "platforms": {}}


class QualityCollector(Collector):
    """Exports the figures as gauges ``tlp_prediction_…`` with the labels platform and version."""

    def __init__(self) -> None:
        self._document = decode_quality(None)

    def tell(self, told: bytes | None) -> None:
        """Set the report that the next scrape exports."""
        self._document = decode_quality(told)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield one gauge per figure; a figure without a value has no series."""
        for figure, text in _GAUGES.items():
            gauge = GaugeMetricFamily(f"tlp_prediction_{figure}", text, labels=["platform", "version"])
            for platform, versions in islice(sorted(self._document["platforms"].items()), _MAX_PLATFORMS):
                # The serving version comes first, then the versions with the most measurements.
                order = sorted(versions.items(), key=lambda v: (not v[1]["serving"], -v[1]["measured"]))
                for version, figures in order[:_MAX_VERSIONS]:
                    if figures.get(figure) is not None:
                        gauge.add_metric([platform, version], float(figures[figure]))
            yield gauge
        if (told_s := self._document.get("time")) is not None:
            yield GaugeMetricFamily(
                "tlp_prediction_told_timestamp_seconds",
                "Unix time in seconds of the recorder's latest report; it does not change while no recorder runs.",
                value=told_s,
            )
