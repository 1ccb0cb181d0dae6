"""Each section of the page of results makes tables of figures in the form in which its benchmark writes them."""

import sys

import pytest
from doc_blocks import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))

from sections import SECTIONS

_LATENCY = {"p50_ms": 10.5, "p99_ms": 20.5}
_BARS = {name: 2.0 for name in ("a / f cold", "c / e", "e / (g + h)", "e / floor", "(f - g - h) / dump")}
_WORKERS = {"workers": 4, "candidates_per_s": 9000, **_LATENCY, "fairness": 0.9, "lost": 0, "rss_mb": 200}
_PHASE = {"calls": 100, "failed": 0, "mixed": 0, **_LATENCY}
_RANKS = {"tasks": 14, "seeds": 3, "top1": [0.8, 0.7, 0.9], "top5": [0.9, 0.8, 1.0], "pairs": [0.7, 0.6, 0.8]}
_RANKING = {"rows": [{"platform": "k80", "model": "xgboost", **_RANKS}]}
_FIGURES = {"top-1": 0.8, "pairs": 0.7}

#: Name of a section -> figures, and a row that they become.
SAMPLES = {
    "demo": (
        {
            "operators": [
                {
                    "operator": "softmax",
                    "trials": 8,
                    "untuned_ms": 5.0,
                    "sample_ms": 2.0,
                    "tuned_ms": 1.5,
                    "candidates": 99,
                    "fallbacks": 0,
                }
            ],
            "quality": {
                "cpu": {"v-1": {"measured": 9, "rounds": 0, "pair_accuracy": 0.625, "top1_regret": None}}
            },
        },
        "| `v-1` | 9 | 0 | 0.625 | - |",
    ),
    "predict": (
        {"matmul": {"bars": _BARS, "search": {"predict_ratio": 3.0, "cache_hits": 0.4}}},
        "| scores of a search that came from the client's cache | 40% |",
    ),
    "load": (
        {
            "4 workers": _WORKERS,
            "16 candidates beside 16 x 2,048": {"p99_ratio": 2.5},
            "overload": {
                "offered_per_capacity": 3.0,
                "accepted_per_capacity": 0.9,
                "accepted_in_time": 1.0,
                "refused": _LATENCY,
            },
            "many requests": {"requests": 10000, "at_the_end": {"most_mb": 321}},
            "idle": {"cpu_share": 0.004},
        },
        "| 4 | 9000 | 10.5 | 20.5 | 0.9 | 0 | 200 |",
    ),
    "ingest": (
        {
            "idle": {"predict": _LATENCY, "p99_to_idle": 1.0},
            "both": {"predict": _LATENCY, "p99_to_idle": 1.4},
            "kept": {"stored": 7, "acknowledged": 7},
            "most": {"records_per_s": 20000},
        },
        "| both | 10.5 | 20.5 | 1.4 |",
    ),
    "swap": (
        {"without": _PHASE, "during": _PHASE, "rss_growth_mb": 3, "swaps": 500.0},
        "| during swaps | 100 | 0 | 0 | 20.5 |",
    ),
    "precision": (
        {"speed_ratio": 1.8, "kendall_tau": 0.77, "top5_float32": 0.9, "top5_int8": 0.8},
        "| speed of INT8 ÷ speed of float32 | 1.80 |",
    ),
    "client-import": ({"tvm_s": 1.0, "client_s": 0.05, "ratio": 0.05}, "| ratio | 0.050 |"),
    "parse-logs": ({"files": 3, "time_ratio_to_json": 1.5}, "| time_ratio_to_json | 1.50 |"),
    "ranking-platforms": (_RANKING, "| k80 | 14 | 3 | xgboost | 0.800 (0.700-0.900) |"),
    "ranking-folds": (_RANKING, "| k80 | 14 | 3 | xgboost | 0.800 (0.700-0.900) |"),
    "ranking-few": (_RANKING, "| k80 | 14 | 3 | xgboost | 0.800 (0.700-0.900) |"),
    "learning-curve": (
        {
            "v100-0": {
                "frozen": _FIGURES,
                "everything": _FIGURES,
                "steps": [{"share": 0.05, "accepted": False, "figures": _FIGURES}],
            }
        },
        "| v100-0 | 5% | refused by the gate |",
    ),
    "learning-poison": (
        {
            "v100-0": [
                {
                    "share": 0.4,
                    "poisoned": 0.2,
                    "accepted": True,
                    "figures": _FIGURES,
                    "told": {"pair_accuracy": None},
                }
            ]
        },
        "| v100-0 | 40% | 20% | accepted | 0.700 | - |",
    ),
}


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.name)
def test_a_section_shows_the_figures_of_its_benchmark(section):
    figures, row = SAMPLES[section.name]
    body = section.body(figures)
    assert row in body
    rows = [line for line in body.splitlines() if line.startswith("|")]
    assert len(rows) >= 3, "a head, a rule, and a row at least"


def test_sections_of_one_name_there_are_none():
    names = [section.name for section in SECTIONS]
    assert len(set(names)) == len(names)
    assert set(SAMPLES) == set(names)
