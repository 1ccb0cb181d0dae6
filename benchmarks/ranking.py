"""Compares how well loopnest, TLP's network and xgboost rank candidates of unseen tasks, on the same split, in one run.

Loopnest, TLP's network, xgboost, all on the same split, in one run.

``platforms``  every platform: train on a store's train part, stop by its validation part, rank its test part; mean over
               seeds.
``folds``      five folds by task over the records measured for this project, beside models on Ansor's own features; the
               last epoch counts.
``few``        a new platform from few of its records: alone from a share, alone from all, and from the share by a
               network that was trained on the other platforms, as `tlp train --from` does.

TLP's network is the published one, trained with the published rank loss, rate and batch, on lists inside tasks and for
as many epochs as two cores allow (`PUBLISHED_FIT`). Prints tables; ``--out`` gets all figures as JSON.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import time
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from provenance import write_figures

from tlp_client.tasks import canonical_workload_key
from tlp_service.families.lookup import preset_named
from tlp_service.families.loopnest.preset import LoopNestPreset, adopt
from tlp_service.ranking.figures import figures_of, summarise
from tlp_service.records.reader import stored_records
from tlp_service.records.split import parts_by_workload
from tlp_service.records.store import RecordStore
from tlp_service.training.dataset import (
    ImportReport,
    build_sets,
    share_of,
    split_set,
    valid_records,
    without_large_numbers,
)
from tlp_service.training.fit import RANKED_CANDIDATES, fit, predict_task
from tlp_service.training.networks import adapt

#: Tasks of a platform from which on its figures are compared.
COMPARED_TASKS = 10
#: How `published` is trained here: its own settings, on lists inside tasks, for as long as two cores allow.
PUBLISHED_FIT = {"epochs": 10, "patience": 10, "max_candidates": 48, "batch": 1024, "max_number": 1e5}
#: Candidates a task that xgboost is trained on.
XGBOOST_CANDIDATES = 200
XGBOOST = {"max_depth": 8, "eta": 0.1, "subsample": 0.8, "colsample_bytree": 0.3, "tree_method": "hist"}
ROUNDS = 200
FOLDS = 5
SHARE = 0.07
TARGETS = {"cpu": ("platinum-8358", "x86-24c"), "gpu": ("k80", "v100")}


def read_sets(store, kinds, platforms=None):
    """Return kind -> preset -> training set."""
    sets = defaultdict(dict)
    for preset in (preset_named("loopnest"), preset_named("published")):
        encoders = {kind: preset.encoder(kind) for kind in kinds}
        records = valid_records(stored_records(store, platforms), ImportReport())
        for kind, found in build_sets(records, encoders, ImportReport()).items():
            sets[kind][preset.name] = found
    return sets


def rank(score, tested):
    """Return the figures of each task with enough candidates; `score` maps a task to scores."""
    return [
        figures_of(task.platform, task.workload, score(task), task.costs)
        for task in tested.tasks
        if len(task.costs) >= RANKED_CANDIDATES
    ]


def train_network(name, train, validation, seed, **changes):
    """Return the score function of a trained network."""
    preset = preset_named(name)
    settings = dataclasses.replace(preset.settings, seed=seed, **changes)
    if name == "published":
        train = without_large_numbers(train, settings.max_number)
    network = preset.network(train, settings, None)
    fitted = fit(network, train, validation, settings, label=f"{name} seed {seed}")
    return lambda task: predict_task(fitted.network, train.table, task)


def train_xgboost(train, seed):
    """Return the score function of trees that predict log speed from a candidate's flattened published rows."""
    import xgboost

    def flat(task):
        return train.table[task.positions].reshape(len(task.costs), -1)

    random = np.random.default_rng(seed)
    chosen = [t.some(random.permutation(len(t.costs))[:XGBOOST_CANDIDATES]) for t in train.tasks]
    rows = np.concatenate([flat(task) for task in chosen])
    labels = np.concatenate([log_speed(task.costs) for task in chosen])
    return fit_trees(xgboost, rows, labels, seed, flat)


def fit_trees(xgboost, rows, labels, seed, features):
    """Return the score function of trees on features of a task."""
    trees = xgboost.train({**XGBOOST, "seed": seed}, xgboost.DMatrix(rows, labels), ROUNDS)
    return lambda task: trees.predict(xgboost.DMatrix(features(task))).astype(np.float64)


def log_speed(costs):
    """Return the log of each candidate's speed, beside the mean of its task's."""
    logs = -np.log(costs)
    return np.clip(logs - logs.mean(), -3, 3)


def platforms(store, seeds, kinds, models):
    """Train on the train part, rank the test part; return model -> seed -> task figures."""
    found = defaultdict(dict)
    for kind, sets in read_sets(store, kinds).items():
        parts = parts_by_workload([t.workload for t in sets["loopnest"].tasks], store.seed)
        splits = {name: split_set(whole, parts) for name, whole in sets.items()}
        for seed in seeds:
            for name, changes in (("loopnest", {}), ("published", PUBLISHED_FIT)):
                if name not in models:
                    continue
                train, validation, test = splits[name]
                started = time.monotonic()
                score = train_network(name, train, validation, seed, **changes)
                found[name].setdefault(seed, []).extend(rank(score, test))
                print(f"{kind} {name} seed {seed}: {time.monotonic() - started:.0f} s", flush=True)
            if "others" in models:
                train, _, test = splits["published"]
                found["xgboost"].setdefault(seed, []).extend(rank(train_xgboost(train, seed), test))
            show_platforms(found)
    return found


def show_platforms(found):
    """Print the figures of every platform with enough tasks, means over the seeds."""
    first = next(iter(found.values()))
    names = sorted({task.platform for task in first[min(first)]})
    print(f"\n{'platform':<22}{'tasks':>6}" + "".join(f"{model:>34}" for model in found))
    means = defaultdict(list)
    for platform in names:
        cells, tasks = [], 0
        for model, by_seed in found.items():
            own = [[t for t in figures if t.platform == platform] for figures in by_seed.values()]
            own = [figures for figures in own if figures]  # those of seeds that were reached
            tasks = len(own[0]) if own else 0
            if tasks < COMPARED_TASKS:
                break
            summaries = [summarise(of_seed) for of_seed in own]
            row = [
                np.mean([s[f].value for s in summaries]) for f in ("top1_mean", "top5_mean", "pair_accuracy")
            ]
            low, high = (
                np.mean([getattr(s["top1_mean"], end) for s in summaries]) for end in ("low", "high")
            )
            means[model].append(row)
            cells.append(f"{row[0]:.3f} ({low:.2f}-{high:.2f}) {row[1]:.3f} {row[2]:.3f}")
        if tasks >= COMPARED_TASKS:
            print(f"{platform:<22}{tasks:>6}" + "".join(f"  {cell:>32}" for cell in cells))
    mean = ["{:.3f}             {:.3f} {:.3f}".format(*np.mean(rows, axis=0)) for rows in means.values()]
    print(
        f"{'mean':<22}{'':>6}" + "".join(f"  {cell:>32}" for cell in mean),
        "(top-1, its interval, top-5, pairs)",
        flush=True,
    )


def folds(store, folder, seeds, others, models, platform="epyc-9004-2c"):
    """Rank the measured tasks of each fold by models that never saw them; return model -> seed -> task figures."""
    import xgboost

    numbers = {
        canonical_workload_key(task["workload_key"]): n
        for n, task in enumerate(json.loads((folder / "tasks.json").read_text()))
    }
    own = AnsorFeatures(folder, {n: key for key, n in numbers.items()})
    sets = read_sets(store, ["cpu"])["cpu"]
    found = defaultdict(dict)
    for seed in seeds:
        for fold in range(FOLDS):
            # Task n is in fold n % 5. What is held out is held out on every platform.
            def is_tested(task):
                return task.platform == platform and numbers[task.workload] % FOLDS == fold  # noqa: B023

            held = {task.workload for task in sets["loopnest"].tasks if is_tested(task)}
            test = {n: tasks_where(s, is_tested) for n, s in sets.items()}
            train = {n: tasks_where(s, lambda task: task.workload not in held) for n, s in sets.items()}  # noqa: B023
            measured = {n: tasks_where(s, lambda task: task.platform == platform) for n, s in train.items()}
            none = tasks_where(sets["loopnest"], lambda task: False)
            ways = {"loopnest": measured["loopnest"]} if "loopnest" in models else {}
            if others:
                ways["loopnest, other CPUs' records too"] = train["loopnest"]
            for name, records in ways.items():
                score = train_network("loopnest", records, none, seed)
                found[name].setdefault(seed, []).extend(rank(score, test["loopnest"]))
            if "published" in models:
                changes = PUBLISHED_FIT | {"epochs": 12}
                none = tasks_where(sets["published"], lambda task: False)
                score = train_network("published", measured["published"], none, seed, **changes)
                found["published"].setdefault(seed, []).extend(rank(score, test["published"]))
            if "others" in models:
                score = train_xgboost(measured["published"], seed)
                found["xgboost, primitives"].setdefault(seed, []).extend(rank(score, test["published"]))
                found["xgboost, Ansor's features"].setdefault(seed, []).extend(own.trees(xgboost, fold, seed))
                found["TenSet's MLP, Ansor's features"].setdefault(seed, []).extend(own.mlp(fold, seed))
            show_folds(found)
    return found


def tasks_where(whole, condition):
    """Return the tasks of a set for which a condition holds."""
    return dataclasses.replace(whole, tasks=tuple(task for task in whole.tasks if condition(task)))


def show_folds(found):
    """Print the figures over all tasks so far."""
    print()
    for model, by_seed in found.items():
        summaries = [summarise(figures) for figures in by_seed.values()]
        cells = [
            f"{name} {np.mean([s[key].value for s in summaries]):.3f} "
            f"({np.mean([s[key].low for s in summaries]):.3f}-{np.mean([s[key].high for s in summaries]):.3f})"
            for name, key in (("top-1", "top1_mean"), ("top-5", "top5_mean"), ("pairs", "pair_accuracy"))
        ]
        tasks = len(next(iter(by_seed.values())))
        print(f"{model:<32} {tasks:>4} tasks  " + "  ".join(cells), flush=True)


class AnsorFeatures:
    """The records measured for this project by Ansor's own features, one row a store of a candidate."""

    def __init__(self, folder, keys):
        data = np.load(folder / "ansor_features.npz")
        rows, offsets = data["rows"], data["offsets"]
        self.tasks = {}
        for number in np.unique(data["task"]):
            lines = np.flatnonzero((data["task"] == number) & np.isfinite(data["cost"]))
            if len(lines) >= RANKED_CANDIDATES:
                stores = [rows[offsets[n] : offsets[n + 1]] for n in lines]
                self.tasks[int(number)] = (keys[int(number)], stores, data["cost"][lines].astype(np.float64))

    def _split(self, fold):
        train = [task for n, task in self.tasks.items() if n % FOLDS != fold]
        return train, [task for n, task in self.tasks.items() if n % FOLDS == fold]

    def trees(self, xgboost, fold, seed):
        """Return figures of xgboost on sum and maximum over the stores (Ansor's model, with its sum of stores)."""

        def flat(task):
            return np.stack([np.concatenate([s.sum(0), s.max(0)]) for s in task[1]])

        train, test = self._split(fold)
        rows = np.concatenate([flat(task) for task in train])
        score = fit_trees(xgboost, rows, np.concatenate([log_speed(task[2]) for task in train]), seed, flat)
        return [figures_of("", key, score((key, stores, costs)), costs) for key, stores, costs in test]

    def mlp(self, fold, seed, epochs=30):
        """Return figures of TenSet's MLP.

        Stores are encoded, added up, decoded; LambdaRank inside tasks (Zheng et al. 2021).
        """
        from tlp_service.training.losses import rank_loss

        torch.manual_seed(seed)
        train, test = self._split(fold)
        every = np.concatenate([row for _, stores, _ in train for row in stores])
        center, spread = every.mean(0), every.std(0) + 1e-6
        encode = relu_chain(every.shape[1], 256, 256)
        decode = torch.nn.Sequential(relu_chain(256, 256, 256), torch.nn.Linear(256, 1))

        def scores(stores):
            rows = torch.from_numpy((np.concatenate(stores) - center) / spread).float()
            owner = torch.from_numpy(np.repeat(np.arange(len(stores)), [len(s) for s in stores]))
            summed = torch.zeros(len(stores), 256).index_add(0, owner, encode(rows))
            return decode(summed).squeeze(-1)

        optimizer = torch.optim.Adam([*encode.parameters(), *decode.parameters()], lr=7e-4, weight_decay=1e-6)
        for _ in range(epochs):
            for n in torch.randperm(len(train)).tolist():
                _, stores, costs = train[n]
                labels = torch.from_numpy(costs.min() / costs).float()
                loss = rank_loss(scores(stores)[None], labels[None])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        with torch.no_grad():
            return [
                figures_of("", key, scores(stores).double().numpy(), costs) for key, stores, costs in test
            ]


def relu_chain(*widths):
    """Return linear layers with ReLUs."""
    layers = []
    for wide_in, wide_out in pairwise(widths):
        layers += [torch.nn.Linear(wide_in, wide_out), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers)


def few(store, seeds, targets):
    """Return target -> way -> task figures."""
    found = {}
    for kind, names in targets.items():
        whole = read_sets(store, [kind])[kind]["loopnest"]
        parts = parts_by_workload([t.workload for t in whole.tasks], store.seed)
        train, validation, test = split_set(whole, parts)
        for target in names:

            def is_target(task):
                return task.platform == target  # noqa: B023

            def is_other(task):
                return task.platform != target  # noqa: B023

            own, tested = tasks_where(train, is_target), tasks_where(test, is_target)
            judged = tasks_where(validation, lambda task: False)  # the last epoch counts
            ways = found[target] = defaultdict(list)
            for seed in seeds:
                share = share_of(own, SHARE, {target}, seed)
                ways["alone, share"] += rank(train_network("loopnest", share, judged, seed), tested)
                ways["alone, all"] += rank(train_network("loopnest", own, judged, seed), tested)
                ways["from the others"] += rank(adapted(tasks_where(train, is_other), share, seed), tested)
            show_few(found)
    return found


def adapted(others, own, seed):
    """Return the score function of a network that was trained on other platforms, then fine-tuned on this one."""
    (platform,) = own.platforms
    preset, nothing = preset_named("loopnest"), tasks_where(own, lambda task: False)
    settings = dataclasses.replace(preset.settings, seed=seed)
    network = fit(preset.network(others, settings, None), others, nothing, settings).network
    adopt(network, own, platform, own.numbered)
    adapt(network, own, nothing, dataclasses.replace(settings, **preset.adapting))
    return lambda task: predict_task(network, own.table, task)


def show_few(found):
    """Print each target's figures, their means, and the share of the gap that the other platforms close."""
    means = defaultdict(list)
    for target, ways in found.items():
        cells = []
        for way, figures in ways.items():
            summary = summarise(figures)
            top1, pairs = summary["top1_mean"], summary["pair_accuracy"]
            means[way].append((top1.value, pairs.value))
            cells.append(f"{way} {top1.value:.3f} ({top1.low:.2f}-{top1.high:.2f}) / {pairs.value:.3f}")
        print(f"{target:<16} top-1 / pairs: {'  '.join(cells)}", flush=True)
    low, high, shared = (
        np.mean(means[way], axis=0) for way in ("alone, share", "alone, all", "from the others")
    )
    closed = (shared - low) / (high - low)
    cells = "  ".join(
        f"{way} {np.mean(m, axis=0)[0]:.3f} / {np.mean(m, axis=0)[1]:.3f}" for way, m in means.items()
    )
    print(f"{'mean':<16} top-1 / pairs: {cells}")
    print(f"of the gap closed: top-1 {closed[0]:.2f}, pairs {closed[1]:.2f}", flush=True)


def rows_of(found):
    """Return a row per platform and model.

    A row has tasks, seeds, and (value, low, high) of each figure as means over the seeds.
    """
    rows = []
    for model, by_seed in found.items():
        platforms = sorted({task.platform for figures in by_seed.values() for task in figures})
        for platform in platforms:
            own = [[t for t in figures if t.platform == platform] for figures in by_seed.values()]
            own = [figures for figures in own if figures]
            rows.append({"platform": platform, "model": model, **mean_over_seeds(own)})
    return rows


def rows_of_few(found, seeds):
    """Return the rows of `few`, whose figures are by target and way, those of one seed after those of another."""
    rows = []
    for target, ways in found.items():
        for way, figures in ways.items():
            tasks = len(figures) // len(seeds)
            by_seed = [figures[n * tasks : (n + 1) * tasks] for n in range(len(seeds))]
            rows.append({"platform": target, "model": way, **mean_over_seeds(by_seed)})
    return rows


def mean_over_seeds(by_seed):
    summaries = [summarise(figures) for figures in by_seed]
    row = {"tasks": len(by_seed[0]), "seeds": len(by_seed)}
    for name, key in (("top1", "top1_mean"), ("top5", "top5_mean"), ("pairs", "pair_accuracy")):
        parts = ([getattr(s[key], end) for s in summaries] for end in ("value", "low", "high"))
        row[name] = [round(float(np.mean(part)), 4) for part in parts]
    return row


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", choices=("platforms", "folds", "few"))
    parser.add_argument("store", type=Path, help="record store of all logs")
    parser.add_argument(
        "--measured", type=Path, help="folder of the records measured for this project (folds)"
    )
    parser.add_argument(
        "--others", action="store_true", help="train loopnest on other CPUs' records, too (folds)"
    )
    parser.add_argument(
        "--models",
        nargs="+",
        choices=("loopnest", "published", "others"),
        default=["loopnest", "published", "others"],
        help="which to train (platforms, folds)",
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--kinds", nargs="+", default=["cpu", "gpu"])
    parser.add_argument("--epochs", type=int, help="of loopnest, instead of its own")
    parser.add_argument("--out", type=Path, help="file that gets all figures")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    if arguments.epochs:
        LoopNestPreset.settings = dataclasses.replace(LoopNestPreset.settings, epochs=arguments.epochs)
    store = RecordStore(arguments.store)
    if arguments.study == "platforms":
        found = platforms(store, arguments.seeds, arguments.kinds, arguments.models)
    elif arguments.study == "folds":
        found = folds(store, arguments.measured, arguments.seeds, arguments.others, arguments.models)
    else:
        found = few(store, arguments.seeds, {kind: TARGETS[kind] for kind in arguments.kinds})
    if arguments.out:
        is_few = arguments.study == "few"
        rows = rows_of_few(found, arguments.seeds) if is_few else rows_of(found)
        write_figures(arguments.out, {"rows": rows})


if __name__ == "__main__":
    main()
