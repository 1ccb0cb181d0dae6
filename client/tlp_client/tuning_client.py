"""Scores and measurements of one tuner over the service: all that does not depend on the tuner's library."""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import sys
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from tlp_client.connection import Connection, Round
from tlp_client.dialects.registry import stated_name
from tlp_client.errors import BadAnswer, InvalidInput, Refused
from tlp_client.fallback import LocalFallback
from tlp_client.outbox import Outbox
from tlp_client.records import RecordParser, split_primitives
from tlp_client.score_cache import ScoreCache
from tlp_client.spool import Spool, find_folder
from tlp_client.tasks import Task
from tlp_client.wire.fields import read_name
from tlp_client.wire.measurements import measurement_id

log = logging.getLogger(__name__)

#: Maximum number of tasks whose rounds are remembered, far more than are tuned at a time. A task that is forgotten begins another round.
_MAX_ROUNDS = 4096


@dataclass(slots=True)
class Counts:
    """What a model did so far.

    Parameters
    ----------
    predicts, candidates : int
        Predict calls that the service answered, and the candidates in them.
    cached : int
        Of these candidates, those whose scores were known already, or that stood twice in a call.
    fallbacks, fallback_candidates : int
        Predict calls that the service did not answer, and the candidates in them.
    invalid : int
        Candidates that the service called invalid; they got the lowest score.
    """

    predicts: int = 0
    candidates: int = 0
    cached: int = 0
    fallbacks: int = 0
    fallback_candidates: int = 0
    invalid: int = 0


class Tuner(Protocol):
    """What `TuningClient` has to know of a tuner's own objects. Any method may raise.

    Attributes
    ----------
    dialect : str
        Name of the dialect in which the tuner's candidates and records are written.
    """

    dialect: str

    def describe(self, task: Any) -> Task:
        """Return the task that the tuner's own task is."""

    def candidates(self, task: Any, candidates: Sequence[Any]) -> list[str]:
        """Return each candidate as text of the form that `Dialect.split_primitives` reads. Different candidates have different texts."""

    def line(self, measured: Any, result: Any) -> str:
        """Return the record line of something that was measured."""

    def workload_key(self, measured: Any) -> str:
        """Return the key of the task that something measured belongs to, as `describe` states it."""


class TuningClient:
    """Scores candidates by the cost-model service and sends it what was measured.

    The search never stops because of the service: when there is no answer within the deadline, a local
    fallback scores for the rest of the round; a warning says so once an outage. Rounds are kept apart by task, so one
    client may serve many searches at a time. No exception leaves `predict`, `update` or `finish_round`.

    Parameters
    ----------
    tuner : Tuner
        The tuner whose candidates are scored.
    fallback : LocalFallback
        Scores while the service does not.
    url : str
        Of the service, e.g. ``http://cost-model:8000``.
    platform : str or None
        Hardware that is tuned for, e.g. ``v100``. Needed where devices share a target string.
    worker : str or None
        Name under which this worker measures; host and process id by default.
    deadline_s : float
        Seconds that one predict may take.
    outbox_dir : str, path or None
        Folder in which measurements wait for the service, so that they outlive this process; "" for memory only. By default
        ``$TLP_OUTBOX_DIR``, or else ``tlp/outbox`` in the user's cache folder.
    connection, outbox : Connection, Outbox or None
        For tests.

    Attributes
    ----------
    counts : Counts
        What it did so far.
    outbox : Outbox
        Holds what the service has not acknowledged.

    Raises
    ------
    InvalidRequest
        If platform or worker is no name that the wire format takes.
    ValueError
        If the connection is for another dialect than the tuner's.
    """

    def __init__(
        self,
        tuner: Tuner,
        fallback: LocalFallback,
        url: str,
        platform: str | None = None,
        *,
        worker: str | None = None,
        deadline_s: float = 10.0,
        outbox_dir: str | os.PathLike[str] | None = None,
        connection: Connection | None = None,
        outbox: Outbox | None = None,
    ) -> None:
        worker = read_name(worker, "worker") or _worker_name()
        self._tuner = tuner
        self._fallback = fallback
        self._connection = connection or Connection(
            url, platform=platform, dialect=tuner.dialect, deadline_s=deadline_s, client=worker
        )
        if self._connection.dialect != tuner.dialect:
            raise ValueError(
                f"connection: expected one for the dialect {tuner.dialect!r}, got {self._connection.dialect!r}"
            )
        self.outbox = outbox or _open_outbox(self._connection, worker, outbox_dir)
        self.counts = Counts()
        self._parser = RecordParser(dialect=tuner.dialect)
        self._scores = ScoreCache()
        self._unreported = 0  # cached candidates that the service has not heard of
        self._lock = threading.Lock()
        self._rounds: OrderedDict[str, Round] = OrderedDict()  # by workload key, the last used last
        self._next_version: str | None = None  # that rounds begin with, after `load`
        self._latest: tuple[str, str] | None = None
        self._has_warned = False

    @property
    def version(self) -> str | None:
        """Model version of the latest scores, or of `load`; None before either."""
        return self._latest[1] if self._latest else None

    def predict(self, task: Any, candidates: Sequence[Any]) -> list[float]:
        """Return one score per candidate, in order: finite, higher is faster, 0 only for an invalid candidate.

        Parameters
        ----------
        task : object
            The tuner's own task, that of all candidates.
        candidates : sequence
            The tuner's own candidates; an empty one costs no request.
        """
        if len(candidates) == 0:
            return []
        round_ = None
        try:
            described = self._tuner.describe(task)
            round_ = self._round_of(described.workload_key)
            if not round_.fell_back:
                scores = self._predict_remotely(task, described, candidates, round_)
                self._recover()
                return scores
        except Exception as error:  # noqa: BLE001  whatever happens here, the search goes on
            if round_ is not None:
                round_.fell_back = True
            self._warn(error)
        with self._lock:
            self.counts.fallbacks += 1
            self.counts.fallback_candidates += len(candidates)
        return self._fallback.predict(task, candidates)

    def update(self, measured: Sequence[Any], results: Sequence[Any]) -> None:
        """Send measured results to the service, in the background, and end the rounds of their tasks.

        The next predict of these tasks takes the version that serves then.

        Parameters
        ----------
        measured, results : sequence
            The tuner's own objects of what was measured, and the result of each, failed runs included.
        """
        if len(measured) == 0:
            return
        try:
            self._fallback.learn(measured, results)
        except Exception:  # as in predict, the search goes on
            log.exception("the local fallback does not learn from %d measured records", len(measured))
        self.finish_round(measured, results)

    def finish_round(self, measured: Sequence[Any], results: Sequence[Any]) -> None:
        """Do what `update` does but for teaching the fallback; sent again by `update`, a record is kept once."""
        try:
            self._send(measured, results)
            with self._lock:
                self._next_version = None
                for one in measured:
                    # It stays: a tuner may tell of a round in several parts, and all were chosen by its version.
                    if (round_ := self._rounds.get(self._tuner.workload_key(one))) is not None:
                        round_.is_measured = True
        except Exception:  # as in predict, the search goes on
            log.exception("%d measured records are not sent", len(measured))

    def save(self, file_name: str) -> None:
        """Write which model and version score now; the model itself is the service's."""
        model, version = self._latest or (None, None)
        state = {"service": self._connection.url, "model": model, "version": version, **asdict(self.counts)}
        Path(file_name).write_text(json.dumps(state, indent=2) + "\n")

    def load(self, file_name: str) -> None:
        """Score with the version that `save` wrote, until the next `update`; if it is gone, by the one that serves.

        Raises
        ------
        OSError
            If the file cannot be read.
        ValueError
            If `save` did not write it. A model that can't be loaded is never passed over.
        """
        try:
            state = json.loads(Path(file_name).read_text())
            model, version = state["model"], state["version"]
            if not (isinstance(model, str) and isinstance(version, str)) and (model, version) != (None, None):
                raise TypeError("model and version are names")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"{file_name} is no file of TLPRemoteModel.save: {error}") from None
        with self._lock:
            self._next_version = version
            self._latest = (model, version) if version is not None else None
            self._rounds.clear()

    def _round_of(self, key: str) -> Round:
        """Return the round of a task, a new one if candidates of the last one were measured."""
        with self._lock:
            round_ = self._rounds.get(key)
            if round_ is None or round_.is_measured:
                round_ = self._rounds[key] = Round(self._next_version)
            self._rounds.move_to_end(key)
            if len(self._rounds) > _MAX_ROUNDS:
                self._rounds.popitem(last=False)
            return round_

    def _predict_remotely(
        self, task: Any, described: Task, candidates: Sequence[Any], round_: Round
    ) -> list[float]:
        texts = self._tuner.candidates(task, candidates)
        if len(texts) != len(candidates):
            raise InvalidInput(f"the tuner wrote {len(texts)} texts for {len(candidates)} candidates")
        distinct = dict.fromkeys(texts)
        # One object for all calls of a task, so that the cache need not compare its characters.
        scope = sys.intern(f"{described.workload_key}\n{described.target}")
        # Only an answer tells which version serves this round, so its first call asks for all.
        version = round_.version if round_.is_answered else None
        scores = self._scores.find(version, scope, distinct) if version is not None else {}
        asked = [text for text in distinct if text not in scores]
        cached = len(texts) - len(asked)
        with self._lock:
            self._unreported += cached
        if asked:
            scores |= self._ask(described, asked, round_, scope)
        if not any(scores.values()):
            raise BadAnswer("no candidate could be scored: the service calls all of them invalid")
        with self._lock:
            self.counts.predicts += 1
            self.counts.candidates += len(texts)
            self.counts.cached += cached
        return [scores[text] for text in texts]

    def _ask(self, described: Task, texts: Sequence[str], round_: Round, scope: str) -> dict[str, float]:
        """Return the scores of candidates from the service; 0 for one that is invalid."""
        primitives, candidates = split_primitives(texts, described.dialect)
        with self._lock:
            cached, self._unreported = self._unreported, 0
        try:
            answer = self._connection.predict(described, primitives, candidates, round_, cached)
        except BaseException:
            with self._lock:
                self._unreported += cached
            raise
        valued = [0.0 if score is None else score for score in answer.scores]
        self._scores.add(answer.version, scope, texts, valued)
        if answer.errors:
            log.info("invalid candidates: %s", next(iter(answer.errors.values())))
        with self._lock:
            self._latest = (answer.model, answer.version)
            self.counts.invalid += answer.scores.count(None)
        return dict(zip(texts, valued, strict=True))

    def _send(self, measured: Sequence[Any], results: Sequence[Any]) -> None:
        letters: dict[str | None, list[tuple[str, str]]] = {}
        for one, result in zip(measured, results, strict=True):
            line = self._tuner.line(one, result)
            try:
                record = self._parser.parse(line.strip())
            except InvalidInput as error:
                log.warning("a measured record is not sent: %s", error)
                continue
            round_ = self._rounds.get(record.task.workload_key)
            version = round_.version if round_ else None
            letter = (measurement_id(record, self._connection.platform), record.to_line())
            letters.setdefault(version, []).append(letter)
        for version, of_version in letters.items():
            self.outbox.put(of_version, version)

    def _warn(self, error: Exception) -> None:
        with self._lock:
            is_first, self._has_warned = not self._has_warned, True
        if is_first:
            remedy = f"; {error.remedy}" if isinstance(error, Refused) else ""
            log.warning(
                "the cost-model service does not score, falling back to local scores: %s%s", error, remedy
            )

    def _recover(self) -> None:
        with self._lock:
            had_warned, self._has_warned = self._has_warned, False
        if had_warned:
            log.info("the cost-model service scores again")


def _open_outbox(connection: Connection, worker: str, named: str | os.PathLike[str] | None) -> Outbox:
    folder = find_folder(named)
    if folder is None:
        return Outbox(connection, worker)
    dialect = stated_name(connection.dialect)
    return Outbox(connection, worker, spool=Spool(folder, connection.url, connection.platform, dialect))


def _worker_name() -> str:
    host = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname()).lstrip("._-") or "worker"
    return f"{host[:100]}-{os.getpid()}"
