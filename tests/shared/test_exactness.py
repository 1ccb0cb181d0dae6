"""The engine against the padded network on candidates of every public log.

Skipped where the logs are not beside the checkout.
"""

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from tlp_client.errors import InvalidInput
from tlp_client.logs import LOG_SUFFIXES, open_log
from tlp_client.records import RecordParser
from tlp_client.tasks import platform_kind
from tlp_service.families.published.features import PUBLISHED
from tlp_service.families.published.network import PublishedNetwork
from tlp_service.families.published.plan import RowPlan
from tlp_service.inference.score_map import map_scores
from tlp_service.scoring.scorer import Scorer
from tlp_service.settings import shipped_model
from tlp_service.training.export import read_weights

LOGS = Path(__file__).resolve().parents[3] / "shared" / "data" / "ansor-logs"
CANDIDATES = 20_000

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not LOGS.is_dir(), reason="the public logs are not beside this checkout"),
]


def sampled_candidates():
    """Return the primitives of candidates of all logs, by platform kind, and how many files they are from."""
    chance, parser = random.Random(0), RecordParser()
    paths = [p for p in sorted(LOGS.rglob("*")) if p.is_file() and p.name.endswith(LOG_SUFFIXES)]
    found, files = {"cpu": [], "gpu": []}, 0
    for path in paths:
        with open_log(path) as file:
            lines = list(file)
        chosen = chance.sample(lines, min(len(lines), 2 * CANDIDATES // len(paths)))
        before = sum(map(len, found.values()))
        for line in chosen:
            try:
                record = parser.parse(line.decode().strip())
            except (InvalidInput, UnicodeDecodeError):
                continue
            kind = platform_kind(record.task.target)
            if kind in found:
                found[kind].append(record.primitives)
        files += sum(map(len, found.values())) > before
    chance.shuffle(found["cpu"])
    chance.shuffle(found["gpu"])
    return found, files


def test_scores_are_those_of_the_padded_network_on_every_log(capsys):
    scorer = Scorer(shipped_model("published"))
    found, files = sampled_candidates()
    candidates, worst_raw, worst_score = 0, 0.0, 0.0
    for kind, sampled in found.items():
        features, of_kind = PUBLISHED[kind], scorer.manifest.network(kind)
        known = {}
        of_candidates = [[known.setdefault(p, len(known)) for p in primitives] for primitives in sampled]
        table, broken = features.rows(list(known))
        scorable = [c for c in of_candidates if not any(i in broken for i in c)]
        lengths = np.array([len(c) for c in scorable])
        indices = np.array([i for c in scorable for i in c])
        ours = scorer.loaded(of_kind).score_all(table, RowPlan.of(indices, lengths, features.steps))
        network = PublishedNetwork(features.width).eval()
        network.load_state_dict(read_weights(scorer.folder / of_kind.file))
        rows, positions = torch.from_numpy(table), features.positions(indices, lengths)
        with torch.inference_mode():
            theirs = np.concatenate([network(rows[part]).numpy() for part in np.array_split(positions, 400)])
        worst_raw = max(worst_raw, float(np.max(np.abs(ours - theirs) / np.maximum(1, np.abs(theirs)))))
        mine, expected = map_scores(ours, of_kind.score_map), map_scores(theirs, of_kind.score_map)
        worst_score = max(worst_score, float(np.max(np.abs(mine - expected) / expected)))
        candidates += len(scorable)
    with capsys.disabled():
        print(
            f"\n{candidates} candidates of {files} logs: raw scores differ by at most {worst_raw:.1e} of max(1, "
            f"|raw|), "
            f"served scores by at most {worst_score:.1e} of themselves"
        )
    assert candidates >= CANDIDATES
    assert worst_raw <= 1e-5
    assert worst_score <= 1e-5
