"""The Prometheus metrics. Text from callers never becomes a label, except a bounded number of platforms."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

from tlp_service.quality.metrics import QualityCollector

# The library would add a second series per counter.
disable_created_metrics()  # type: ignore[no-untyped-call]  # the library does not type it

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

#: Maximum number of platform labels, because a client can send any number of platform names.
_MAX_PLATFORMS = 64


class Metrics:
    """The metrics of one server, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._add_requests(self.registry)
        self._add_scoring(self.registry)
        self._add_measurements(self.registry)
        self._add_versions(self.registry)
        self.quality = QualityCollector()
        self.registry.register(self.quality)
        self._platforms: set[str] = set()
        self._versions: set[tuple[str, str]] = set()
        self._lock = threading.Lock()

    def _add_requests(self, registry: CollectorRegistry) -> None:
        self.requests = Counter("tlp_requests", "Requests answered.", ["route", "status"], registry=registry)
        self.seconds = Histogram(
            "tlp_request_seconds",
            "Seconds from request to answer.",
            ["route"],
            registry=registry,
            buckets=_SECONDS,
        )

    def _add_scoring(self, registry: CollectorRegistry) -> None:
        self.candidates = Counter(
            "tlp_candidates_scored", "Candidates scored.", ["platform_kind", "version"], registry=registry
        )
        self.invalid = Counter(
            "tlp_candidates_invalid", "Candidates that a version could not score.", registry=registry
        )
        self.truncated = Counter(
            "tlp_candidates_truncated",
            "Candidates with more primitives than the network reads; the last primitives did not count.",
            registry=registry,
        )
        self.cached = Counter(
            "tlp_candidates_cached",
            "Candidates that clients scored from their caches, as they report; at most TLP_MAX_CANDIDATES per request.",
            registry=registry,
        )
        self.waiting = Gauge(
            "tlp_candidates_waiting",
            "Work units queued for scoring: candidates plus the cost of encoding their primitives.",
            registry=registry,
        )
        self.clients = Gauge(
            "tlp_clients_waiting", "Clients that have candidates queued for scoring.", registry=registry
        )
        self.rate = Gauge(
            "tlp_candidates_per_second",
            "Candidates that this server can score per second, as measured lately.",
            registry=registry,
        )

    def _add_measurements(self, registry: CollectorRegistry) -> None:
        self.measurements = Counter(
            "tlp_measurements",
            "Measurements by outcome: accepted, duplicate, rejected.",
            ["outcome"],
            registry=registry,
        )
        self.runs = Counter(
            "tlp_measured_runs",
            "Accepted measurements by result: valid, failed.",
            ["platform", "result"],
            registry=registry,
        )
        self.stream_length = Gauge(
            "tlp_measurement_stream_length",
            "Records in the stream: those that wait for the recorder, or all records if there is no recorder.",
            registry=registry,
        )
        self.writable = Gauge(
            "tlp_measurements_writable",
            "1 if measurements can be kept, 0 if not; each scrape tries a write.",
            registry=registry,
        )

    def _add_versions(self, registry: CollectorRegistry) -> None:
        self.model = Gauge(
            "tlp_model_loaded",
            "1 for the version that serves, 0 for each other loaded version.",
            ["model", "version"],
            registry=registry,
        )
        self.swaps = Counter(
            "tlp_version_swaps", "Times that another version began to serve.", registry=registry
        )
        self.failed_loads = Counter(
            "tlp_version_failed_loads", "Versions that could not be loaded.", registry=registry
        )
        self.registry_reachable = Gauge(
            "tlp_registry_reachable",
            "1 if the registry can be read and names a version, 0 if not; the loaded version then continues to serve.",
            registry=registry,
        )
        self.registry_reachable.set(1)
        self.provider = Gauge(
            "tlp_execution_provider",
            "1 for the provider that runs the network.",
            ["provider"],
            registry=registry,
        )

    def set_loaded(self, versions: Sequence[tuple[str, str]]) -> None:
        """Set the loaded versions as (model, version), the serving one first; remove the series of others."""
        with self._lock:
            for model, version in self._versions - set(versions):
                self._remove(self.model, model, version)
                for kind in ("cpu", "gpu"):
                    self._remove(self.candidates, kind, version)
            self._versions = set(versions)
            for place, (model, version) in enumerate(versions):
                self.model.labels(model, version).set(1 if place == 0 else 0)

    def count_scored(self, kind: str, version: str, count: int) -> None:
        """Count scored candidates; those of a version that is no longer loaded count as ``other``."""
        with self._lock:
            is_loaded = any(version == loaded for _, loaded in self._versions)
            self.candidates.labels(kind, version if is_loaded else "other").inc(count)

    @staticmethod
    def _remove(metric: Counter | Gauge, *labels: str) -> None:
        with contextlib.suppress(
            KeyError
        ):  # raised by some versions of the library if there is no such series
            metric.remove(*labels)

    def platform_label(self, platform: str) -> str:
        """Return the platform as a label: its name for the first 64 platforms, ``other`` for later ones."""
        if platform not in self._platforms:
            if len(self._platforms) >= _MAX_PLATFORMS:
                return "other"
            self._platforms.add(platform)
        return platform
