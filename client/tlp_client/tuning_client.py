"""The part of a cost model that is the same for every tuner: rounds, cache, fallback and outbox."""

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

#: Maximum number of tasks whose rounds are kept in memory, far more than are tuned at a time.
#: An evicted task begins another round.
_MAX_ROUNDS = 4096


@dataclass(slots=True)
class Counts:
    """Counters of a model's predict calls and candidates.

    Parameters
    ----------
    predicts, candidates : int
        Predict calls that the service answered, and the candidates in them.
    cached : int
        Number of these candidates that were in the score cache or were duplicates within their call.
    fallbacks, fallback_candidates : int
        Predict calls that the service did not answer, and the candidates in them.
    invalid : int
        Candidates that the service reported as invalid; they got the lowest score.
    """

    predicts: int = 0
    candidates: int = 0
    cached: int = 0
    fallbacks: int = 0
    fallback_candidates: int = 0
    invalid: int = 0


class Tuner(Protocol):
    """Translates a tuner's own objects for `TuningClient`. Any method may raise.

    Attributes
    ----------
    dialect : str
        Name of the dialect in which the tuner's candidates and records are written.
    """

    dialect: str

    def describe(self, task: Any) -> Task:
        """Return the `Task` that describes the tuner's own task."""

    def candidates(self, task: Any, candidates: Sequence[Any]) -> list[str]:
        """Return each candidate as text that `Dialect.split_primitives` can read.

        Different candidates must have different texts.
        """

    def line(self, measured: Any, result: Any) -> str:
        """Return the record line of a measurement."""

    def workload_key(self, measured: Any) -> str:
        """Return the workload key of a measured candidate's task, the same as from `describe`."""


class TuningClient:
    """Scores candidates through the cost-model service and sends it the measurements.

    The search never stops because of the service. If no answer arrives within the deadline, a local fallback
    scores for the rest of the round. Each outage is logged once, as a warning. Rounds are tracked per task,
    so searches may share one client. `predict`, `update` and `finish_round` never raise.

    Parameters
    ----------
    tuner : Tuner
        The tuner whose candidates are scored.
    fallback : LocalFallback
        Scores candidates while the service gives no answer.
    url : str
        URL of the service, e.g. ``http://cost-model:8000``.
    platform : str or None
        Name of the target hardware, e.g. ``v100``. Needed if several devices share a target string.
    worker : str or None
        Name of this worker in its measurements; host name and process id by default.
    deadline_s : float
        Maximum seconds per predict call.
    outbox_dir : str, path or None
        Folder that keeps unsent measurements, so that they survive this process; "" keeps them in memory
        only. The default is ``$TLP_OUTBOX_DIR``, or ``tlp/outbox`` in the user's cache folder if that is not
        set.
    connection, outbox : Connection, Outbox or None
        Replacements for the parts that the client would create; for tests.

    Attributes
    ----------
    counts : Counts
        Counters of predict calls and candidates since the client was created.
    outbox : Outbox
        Measurements that the service has not acknowledged yet.

    Raises
    ------
    InvalidRequest
        If platform or worker is not a valid name of the wire format.
    ValueError
        If the connection uses a different dialect from the tuner.
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
        self._unreported = 0  # cached candidates not yet reported to the service
        self._lock = threading.Lock()
        self._rounds: OrderedDict[str, Round] = OrderedDict()  # by workload key, least recently used first
        self._next_version: str | None = None  # version from `load`, with which new rounds begin
        self._latest: tuple[str, str] | None = None
        self._has_warned = False

    @property
    def version(self) -> str | None:
        """Model version of the latest scores or the last `load`, whichever is later; None before both."""
        return self._latest[1] if self._latest else None

    def predict(self, task: Any, candidates: Sequence[Any]) -> list[float]:
        """Return one finite score per candidate, in order; higher is faster.

        Only an invalid candidate scores 0.

        Parameters
        ----------
        task : object
            The tuner's own task, to which all candidates belong.
        candidates : sequence
            The tuner's own candidates. An empty sequence sends no request.
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
        """Send measured results to the service in the background, and end the rounds of their tasks.

        The next predict call of these tasks uses the version that is active at that time.

        Parameters
        ----------
        measured, results : sequence
            The tuner's own objects for the measured candidates and their results, including failed runs.
        """
        if len(measured) == 0:
            return
        try:
            self._fallback.learn(measured, results)
        except Exception:  # as in predict, the search goes on
            log.exception("the local fallback does not learn from %d measured records", len(measured))
        self.finish_round(measured, results)

    def finish_round(self, measured: Sequence[Any], results: Sequence[Any]) -> None:
        """Do the same as `update`, but without training the fallback.

        If `update` sends the same records again, the service keeps them once.
        """
        try:
            self._send(measured, results)
            with self._lock:
                self._next_version = None
                for one in measured:
                    # Keep the round: a tuner may report it in several parts, and its version chose them all.
                    if (round_ := self._rounds.get(self._tuner.workload_key(one))) is not None:
                        round_.is_measured = True
        except Exception:  # as in predict, the search goes on
            log.exception("%d measured records are not sent", len(measured))

    def save(self, file_name: str) -> None:
        """Write the names of the current model and version; the model itself stays at the service."""
        model, version = self._latest or (None, None)
        state = {"service": self._connection.url, "model": model, "version": version, **asdict(self.counts)}
        Path(file_name).write_text(json.dumps(state, indent=2) + "\n")

    def load(self, file_name: str) -> None:
        """Score with the version that `save` wrote, until the next `update`.

        If the service no longer has that version, its active version scores.

        Raises
        ------
        OSError
            If the file cannot be read.
        ValueError
            If `save` did not write the file. It is never ignored: the caller named this version on purpose.
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
        """Return the current round of a task; start a new one if candidates of the last one were measured."""
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
        # Interned: all calls of a task share one string, so the cache compares it by identity.
        scope = sys.intern(f"{described.workload_key}\n{described.target}")
        # The version of a round is unknown until its first answer, so the first call skips the cache.
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
        """Return the service's scores of candidates; invalid ones score 0."""
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
