"""The tables in ``docs/operate.md`` that are made from the code: settings and metrics.

``scripts/write_docs`` writes them.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import annotated_types
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.metrics_core import Metric
from pydantic import SecretStr
from pydantic.fields import FieldInfo

from tlp_service.monitoring import Metrics
from tlp_service.settings import Settings

PAGE = Path(__file__).resolve().parents[1] / "docs" / "operate.md"

#: How the bounds of a setting are shown, by the attribute that holds the bound.
_BOUNDS = (("ge", "at least"), ("gt", "above"), ("le", "at most"))


def settings_table() -> str:
    """Return a Markdown table with a row per setting: variable, default, accepted values, meaning."""
    rows = (
        (f"`TLP_{name.upper()}`", _default(field), _accepted(field), field.description or "")
        for name, field in Settings.model_fields.items()
    )
    return _table(("variable", "default", "accepts", "meaning"), rows)


def _default(field: FieldInfo) -> str:
    return "" if field.default is None else f"`{field.default}`"


def _accepted(field: FieldInfo) -> str:
    """Return what values a setting takes, in words: its type and bounds, or the list of its values."""
    kinds = [
        kind for kind in typing.get_args(field.annotation) or (field.annotation,) if kind is not type(None)
    ]
    if typing.get_origin(field.annotation) is typing.Literal:
        return ", ".join(f"`{kind}`" for kind in kinds)
    names: dict[Any, str] = {int: "whole number", float: "number", bool: "`0` or `1`", Path: "path"}
    names |= {str: "text", SecretStr: "secret text"}
    bounds = [f"{word} {getattr(bound, name):g}" for name, word in _BOUNDS for bound in _bounds(field, name)]
    return " ".join([names[kinds[0]], " and ".join(bounds)]).strip()


def _bounds(field: FieldInfo, name: str) -> list[annotated_types.BaseMetadata]:
    return [part for part in field.metadata if hasattr(part, name)]


def metrics_table() -> str:
    """Return a Markdown table with a row per metric of a server: name, type, labels, meaning."""
    metrics = Metrics()
    # The time of the report has a series only where there is a report.
    metrics.quality.tell(b'{"time": 0, "serving": null, "platforms": {}}')
    own = [part for part in vars(metrics).values() if isinstance(part, MetricWrapperBase)]
    labels = {part._name: part._labelnames for part in own}
    rows = [
        (
            _shown_name(metric),
            metric.type,
            _labels(labels.get(metric.name, _family_labels(metric))),
            metric.documentation,
        )
        for metric in metrics.registry.collect()
    ]
    return _table(("metric", "type", "labels", "meaning"), sorted(rows))


def _shown_name(metric: Metric) -> str:
    return f"`{metric.name}_total`" if metric.type == "counter" else f"`{metric.name}`"


def _family_labels(metric: Metric) -> Sequence[str]:
    return getattr(metric, "_labelnames", ())


def _labels(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def with_tables(page: str) -> str:
    """Return the page with the tables between their markers as the code has them now."""
    for name, table in _tables():
        begin, end = f"<!-- {name}: written by scripts/write_docs -->", f"<!-- end of {name} -->"
        pattern = f"{re.escape(begin)}.*?{re.escape(end)}"
        page, count = re.subn(
            pattern, lambda _, t=table, b=begin, e=end: f"{b}\n\n{t}\n\n{e}", page, flags=re.DOTALL
        )
        if count != 1:
            raise ValueError(f"{PAGE.name}: expected one pair of markers for the {name} table, got {count}")
    return page


def _tables() -> Iterator[tuple[str, str]]:
    yield "settings", settings_table()
    yield "metrics", metrics_table()


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
