"""How the figures of each benchmark become Markdown tables of ``docs/results.md``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

Figures = dict[str, Any]


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a Markdown table; numbers are shown as they come, so round them before."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, cells))} |" for cells in lines)


def share(value: float) -> str:
    """Return a share with three digits, as .812."""
    return f"{value:.3f}"


def interval(figure: Sequence[float]) -> str:
    """Return a figure (value, low, high) with its 95 % interval."""
    value, low, high = figure
    return f"{value:.3f} ({low:.3f}-{high:.3f})"


def shipped_table(manifests: Iterable[Figures]) -> str:
    """Return the test figures of versions, from their manifests."""
    rows = []
    for manifest in manifests:
        for network in manifest["networks"]:
            metrics = network["metrics"]
            for who, name in ((f"`{manifest['version']}`", "test"), ("random choice", "test_random")):
                found = metrics[name]
                figures = (share(found[key]) for key in ("top1_mean", "top5_mean", "pair_accuracy"))
                rows.append((network["platform_kind"], who, found["tasks"], *figures))
    return table(("kind", "scores of", "test tasks", "top-1", "top-5", "pair accuracy"), rows)


def demo_body(figures: Figures) -> str:
    rows = [
        (
            o["operator"],
            o["trials"],
            f"{o['untuned_ms']:.3f}",
            f"{o['sample_ms']:.3f}",
            f"{o['tuned_ms']:.3f}",
            o["candidates"],
            o["fallbacks"],
        )
        for o in figures["operators"]
    ]
    head = (
        "operator",
        "trials",
        "untuned, ms",
        "best random candidate, ms",
        "tuned, ms",
        "scored",
        "fallbacks",
    )
    pictures = (
        "![Best run time so far, by the number of measured candidates](pictures/tuning.svg)\n\n"
        "![Measured speed by score, for each version that scored the search](pictures/prediction_error.svg)"
    )
    return f"{table(head, rows)}\n\n{_demo_versions(figures)}\n\n{pictures}"


def _demo_versions(figures: Figures) -> str:
    rows = [
        (
            f"`{version}`",
            found["measured"],
            found["rounds"],
            _or_dash(found["pair_accuracy"]),
            _or_dash(found["top1_regret"]),
        )
        for versions in figures["quality"].values()
        for version, found in versions.items()
    ]
    return table(("version", "measured", "rounds", "pair accuracy", "top-1 regret"), rows)


def _or_dash(value: float | None) -> str:
    return "-" if value is None else share(value)


def predict_body(figures: Figures) -> str:
    names = {
        "a / f cold": "predict call: `XGBModel` ÷ `TLPRemoteModel` over HTTP",
        "search": "all predict calls of a search: `XGBModel` ÷ `TLPRemoteModel`",
        "e / (g + h)": "in process: engine with TLP's network ÷ `loopnest`",
        "c / e": "padded network in one ONNX Runtime call ÷ engine with TLP's network",
        "e / floor": "engine with TLP's network ÷ compute-bound minimum (multiply-adds at the measured GEMM rate)",
        "(f - g - h) / dump": "HTTP, encoding and scheduling ÷ `dump_record_to_string` of the same states",
    }
    rows = []
    for key, text in names.items():
        bars = ((o["bars"] | {"search": o["search"]["predict_ratio"]})[key] for o in figures.values())
        rows.append((text, *(f"{bar:.2f}" for bar in bars)))
    hits = (f"{o['search']['cache_hits']:.0%}" for o in figures.values())
    rows.append(("scores of a search that came from the client's cache", *hits))
    return table(("ratio of times", *figures), rows)


def load_body(figures: Figures) -> str:
    rows = [
        (f["workers"], f["candidates_per_s"], f["p50_ms"], f["p99_ms"], f["fairness"], f["lost"], f["rss_mb"])
        for name, f in figures.items()
        if name.endswith(" workers")
    ]
    head = ("workers", "candidates per s", "p50, ms", "p99, ms", "fairness", "lost", "memory, MB")
    return f"{table(head, rows)}\n\n{table(('figure', 'value'), _load_rows(figures))}"


def _load_rows(figures: Figures) -> list[tuple[str, Any]]:
    small, over = figures["16 candidates beside 16 x 2,048"], figures["overload"]
    many, idle = figures["many requests"], figures["idle"]
    return [
        ("p99 of a worker of 16 candidates beside 16 workers of 2,048 ÷ p99 alone", small["p99_ratio"]),
        ("overload: offered ÷ capacity", over["offered_per_capacity"]),
        ("overload: accepted ÷ capacity", over["accepted_per_capacity"]),
        ("overload: share of accepted calls that met their deadline", over["accepted_in_time"]),
        ("overload: median time to refuse, ms", over["refused"]["p50_ms"]),
        (
            f"maximum memory after {many['requests']} requests of mixed sizes, MB",
            many["at_the_end"]["most_mb"],
        ),
        ("share of a CPU when idle", idle["cpu_share"]),
    ]


def ingest_body(figures: Figures) -> str:
    names = [name for name in ("idle", "ingest", "trainer", "both") if name in figures]
    rows = [
        (n, figures[n]["predict"]["p50_ms"], figures[n]["predict"]["p99_ms"], figures[n]["p99_to_idle"])
        for n in names
    ]
    kept, most = figures["kept"], figures["most"]
    phases = table(("phase", "p50 of predict, ms", "p99 of predict, ms", "p99 ÷ p99 idle"), rows)
    return (
        f"{phases}\n\n{kept['stored']} of {kept['acknowledged']} acknowledged records were stored.\n"
        f"Without predict calls the server acknowledged {most['records_per_s']} records per second."
    )


def swap_body(figures: Figures) -> str:
    rows = [(name, f["calls"], f["failed"], f["mixed"], f["p99_ms"]) for name, f in _swap_phases(figures)]
    head = ("phase", "calls", "failed", "answers that mix versions", "p99, ms")
    growth = f"The server's memory grew by {figures['rss_growth_mb']} MB over {figures['swaps']:.0f} swaps."
    return f"{table(head, rows)}\n\n{growth}"


def _swap_phases(figures: Figures) -> list[tuple[str, Figures]]:
    return [("without swaps", figures["without"]), ("during swaps", figures["during"])]


def precision_body(figures: Figures) -> str:
    rows = [
        ("speed of INT8 ÷ speed of float32", f"{figures['speed_ratio']:.2f}"),
        ("Kendall's tau of INT8 scores against float32 scores", share(figures["kendall_tau"])),
        ("top-5 with float32", share(figures["top5_float32"])),
        ("top-5 with INT8", share(figures["top5_int8"])),
    ]
    return table(("figure", "value"), rows)


def client_import_body(figures: Figures) -> str:
    rows = [
        ("import of TVM's `auto_scheduler`, ms", f"{1e3 * figures['tvm_s']:.0f}"),
        ("import of `tlp_client.ansor` beyond it, ms", f"{1e3 * figures['client_s']:.0f}"),
        ("ratio", share(figures["ratio"])),
    ]
    return table(("figure", "value"), rows)


def parse_logs_body(figures: Figures) -> str:
    rows = [(name, f"{value:.2f}" if isinstance(value, float) else value) for name, value in figures.items()]
    return table(("figure", "value"), rows)


def ranking_body(figures: Figures) -> str:
    rows = [
        (
            r["platform"],
            r["tasks"],
            r["seeds"],
            r["model"],
            *(interval(r[f]) for f in ("top1", "top5", "pairs")),
        )
        for r in figures["rows"]
    ]
    return table(("platform", "tasks", "seeds", "model", "top-1", "top-5", "pair accuracy"), rows)


def curve_body(figures: Figures) -> str:
    rows = []
    for name, found in figures.items():
        steps = [("before", found["frozen"])]
        steps += [(f"{s['share']:.0%}", s["figures"] if s["accepted"] else None) for s in found["steps"]]
        steps.append(("trained on everything", found["everything"]))
        for step, f in steps:
            cells = ("refused by the gate", "") if f is None else (share(f["top-1"]), share(f["pairs"]))
            rows.append((name, step, *cells))
    return table(("platform and seed", "records that came in", "top-1", "pair accuracy"), rows)


def poison_body(figures: Figures) -> str:
    rows = [
        (
            name,
            f"{s['share']:.0%}",
            f"{s['poisoned']:.0%}",
            "accepted" if s["accepted"] else "rejected",
            share(s["figures"]["pairs"]),
            _or_dash(s["told"].get("pair_accuracy")),
        )
        for name, steps in figures.items()
        for s in steps
    ]
    head = (
        "platform and seed",
        "records so far",
        "of the new ones poisoned",
        "gate",
        "pair accuracy",
        "reported pair accuracy",
    )
    return table(head, rows)
