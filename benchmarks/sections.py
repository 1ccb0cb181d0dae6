"""The sections of ``docs/results.md``: for each benchmark what its figures mean, and which table they become."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from section_bodies import (
    Figures,
    client_import_body,
    curve_body,
    demo_body,
    ingest_body,
    load_body,
    parse_logs_body,
    poison_body,
    precision_body,
    predict_body,
    ranking_body,
    swap_body,
)


@dataclass(frozen=True)
class Section:
    """A section of the page.

    Parameters
    ----------
    name : str
        Of the file in ``benchmarks/results``, without its suffix.
    title, text : str
        Heading, and what the figures mean.
    command : str
        What makes the file.
    body : callable
        Returns the figures as Markdown.
    """

    name: str
    title: str
    text: str
    command: str
    body: Callable[[Figures], str]


#: Where the rankings say what top-1 and pair accuracy are.
_OVER_TASKS = "Means over tasks and seeds, with 95 % intervals over tasks."

SECTIONS = (
    Section(
        "demo",
        "A tuning run",
        "Two workers tune three operators with real Ansor through one service, which learns from them meanwhile.\n"
        "Pair accuracy is the share of pairs of measured candidates that the version ordered correctly; .5 is chance.\n"
        "Top-1 regret is the extra run time of the best-scored candidate of a search round over the fastest one.\n"
        "Every candidate is scored by the version that its search used, and by the serving version.",
        "make demo JSON=benchmarks/results/demo.json",
        demo_body,
    ),
    Section(
        "predict",
        "One predict call, and a whole search",
        "2,048 candidates of each operator, scored by Ansor's own cost model and by the service, in turn.\n"
        "A search is one evolutionary search of five generations.",
        "make bench",
        predict_body,
    ),
    Section(
        "load",
        "The server under load",
        "Each worker sends calls of 2,048 candidates back to back.\n"
        "Fairness is the number of calls answered to the slowest worker divided by that of the fastest.",
        "make bench",
        load_body,
    ),
    Section(
        "ingest",
        "Measurements beside predict calls",
        "One worker asks for scores at a fixed rate while others send measured records, and while the trainer learns.",
        "make bench-long",
        ingest_body,
    ),
    Section(
        "swap",
        "Versions swapped under load",
        "Three versions serve in turn while workers ask for scores.",
        "make bench-long",
        swap_body,
    ),
    Section(
        "precision",
        "INT8",
        "The published network, quantized after its attention, beside float32.\n"
        "INT8 would be served only with a Kendall's tau of at least 0.99.",
        "make bench",
        precision_body,
    ),
    Section(
        "client-import",
        "Import of the client",
        "Medians over fresh processes.",
        "make bench",
        client_import_body,
    ),
    Section(
        "parse-logs",
        "The record parser beside TVM's",
        "Every log line is read by TVM's `RecordReader` and by ours.",
        "make bench LOGS=…",
        parse_logs_body,
    ),
    Section(
        "ranking-platforms",
        "Ranking of unseen tasks, by platform",
        f"Models trained on the same split of all public logs. {_OVER_TASKS}",
        "make reproduce LOGS=… MEASURED=… PLATFORMS=…",
        ranking_body,
    ),
    Section(
        "ranking-folds",
        "Ranking of the measured tasks, in five folds",
        f"Models trained on the records measured for this project alone. {_OVER_TASKS}",
        "make reproduce LOGS=… MEASURED=… PLATFORMS=…",
        ranking_body,
    ),
    Section(
        "ranking-few",
        "A new platform from few of its records",
        f"`loopnest` trained on 7 % of a platform's records, on all, and on 7 % starting from the other "
        f"platforms. {_OVER_TASKS}",
        "make reproduce LOGS=… MEASURED=… PLATFORMS=…",
        ranking_body,
    ),
    Section(
        "learning-curve",
        "Learning in service",
        "Records of a platform that the version has not seen arrive; after each share the trainer makes a step.\n"
        "The figures rank tasks of which no record arrived.",
        "make learning LOGS=… MEASURED=… PLATFORMS=…",
        curve_body,
    ),
    Section(
        "learning-poison",
        "Poisoned measurements",
        "As above, but the costs of some records are shuffled inside their tasks.",
        "make learning LOGS=… MEASURED=… PLATFORMS=…",
        poison_body,
    ),
)
