"""The connection of a worker to the service: predict calls and measurements. Needs no TVM."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tlp_client.breaker import CircuitBreaker
from tlp_client.dialects.registry import find, stated_name
from tlp_client.errors import BadAnswer, DeadlineExceeded, Refused, ServiceError, Unreachable
from tlp_client.tasks import Task
from tlp_client.transport import HttpAnswer, HttpTransport, Transport
from tlp_client.wire.fields import (
    CACHED_HEADER,
    CANDIDATES_HEADER,
    CLIENT_HEADER,
    DEADLINE_HEADER,
    read_name,
)
from tlp_client.wire.measurements import MeasurementAnswer, decode_measurement_answer, encode_measurements
from tlp_client.wire.predict import PredictAnswer, decode_predict_answer, encode_predict

log = logging.getLogger(__name__)

#: Maximum seconds of a deadline, and of a pause that a server may request.
_MAX_DEADLINE_S = 86_400

#: Maximum characters of a server's error message. Longer ones are cut, because they are logged.
_MAX_MESSAGE = 1000

#: Seconds before a request is retried if the server sent no Retry-After.
_RETRY_PAUSE_S = 0.1


@dataclass(slots=True)
class Round:
    """The state that the predict calls of one search round of one task share.

    A search compares the scores of several calls, and scores of two versions are not comparable. All calls of
    a round therefore request the version of its first answer.

    Parameters
    ----------
    version : str or None
        Version to request. With None, before the first answer, the active version scores.
    is_answered : bool
        Whether a call of this round has been answered.
    states_platform : bool
        Whether requests name the platform; False after the service reported it as unknown.
    fell_back : bool
        Whether the local fallback scored a call of this round.
    is_measured : bool
        Whether candidates of the round were measured. If so, the next call begins another round.
    """

    version: str | None = None
    is_answered: bool = False
    states_platform: bool = True
    fell_back: bool = False
    is_measured: bool = False


class Connection:
    """Sends predict requests and measurements over one transport. Thread-safe.

    Parameters
    ----------
    url : str
        URL of the service.
    platform : str or None
        Name of the target hardware, e.g. ``v100``. With None, the service infers it from the target, which is
        impossible if several devices share one target.
    dialect : str or None
        Name of the dialect of the measurements; None for the default one. Predict calls use the dialect of
        their task.
    deadline_s : float
        Maximum seconds per predict call, including a retry.
    transport : Transport or None
        Replacement for the HTTP transport; for tests.
    breaker : CircuitBreaker or None
        Replacement for the default breaker, which opens after three consecutive failures; for tests.
    client : str or None
        Name of this client, for fair queueing at the service. By default the service uses the client's
        address.
    clock, sleep : callable
        Replacements for `time.monotonic` and `time.sleep`; for tests.

    Raises
    ------
    InvalidRequest
        If platform or client is not a valid name of the wire format, or the dialect is unknown.
    ValueError
        If the URL or the deadline is invalid.
    """

    def __init__(
        self,
        url: str,
        *,
        platform: str | None = None,
        dialect: str | None = None,
        deadline_s: float = 10.0,
        transport: Transport | None = None,
        breaker: CircuitBreaker | None = None,
        client: str | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.url = url
        self.platform = read_name(platform, "platform")
        self.dialect = find(dialect).name
        self._client = read_name(client, "client")
        if not (isinstance(deadline_s, (int, float)) and 0 < deadline_s <= _MAX_DEADLINE_S):
            raise ValueError(f"deadline_s: seconds above 0, at most {_MAX_DEADLINE_S}, not {deadline_s!r}")
        self._deadline_s = deadline_s
        self._transport = transport or HttpTransport(url)
        self._breaker = breaker or CircuitBreaker()
        self._clock = clock
        self._sleep = sleep
        self._has_warned = False  # whether a warning about an unknown platform was logged

    def predict(
        self,
        task: Task,
        primitives: Sequence[str],
        candidates: Sequence[Sequence[int]],
        round_: Round,
        cached: int = 0,
    ) -> PredictAnswer:
        """Return a score for each candidate.

        Parameters
        ----------
        task : Task
            The task of all candidates.
        primitives : sequence of str
            The distinct primitives as JSON text.
        candidates : sequence of sequences of int
            Indices into `primitives`.
        round_ : Round
            The round that this call belongs to; its first answer decides the version.
        cached : int
            Number of candidates served from the cache since the last call; for the service's metrics.

        Raises
        ------
        ServiceError
            If there is no usable answer within the deadline, or the breaker is open.
        """
        if not self._breaker.allows():
            raise Unreachable(f"{self.url}: not asked, it has failed repeatedly")
        deadline = self._clock() + self._deadline_s
        try:
            answer = self._predict(task, primitives, candidates, round_, cached, deadline)
        except Refused as error:
            # A refusal that the request caused does not count as a failure of the service.
            (self._breaker.failed if error.is_transient else self._breaker.succeeded)()
            raise
        except ServiceError:
            self._breaker.failed()
            raise
        self._breaker.succeeded()
        if not round_.is_answered:
            round_.version, round_.is_answered = answer.version, True
        return answer

    def _predict(
        self,
        task: Task,
        primitives: Sequence[str],
        candidates: Sequence[Sequence[int]],
        round_: Round,
        cached: int,
        deadline: float,
    ) -> PredictAnswer:
        while True:
            body = encode_predict(
                task,
                primitives,
                candidates,
                platform=self.platform if round_.states_platform else None,
                version=round_.version,
            )
            try:
                headers = {CANDIDATES_HEADER: str(len(candidates)), CACHED_HEADER: str(cached)}
                answer = self._post("/v1/predict", body, deadline, headers)
            except Refused as error:
                self._adapt(round_, error)
                continue
            return decode_predict_answer(answer.body, len(candidates))

    def _adapt(self, round_: Round, error: Refused) -> None:
        """Change the round's requests if that can resolve a refusal; otherwise raise it."""
        if error.code == "unknown_platform" and self.platform and round_.states_platform:
            if not self._has_warned:
                log.warning("%s; predicting by the target alone", error.message)
            self._has_warned = True
            round_.states_platform = False
        elif error.code in ("unknown_version", "version_gone") and round_.version and not round_.is_answered:
            log.warning("version %s is gone, taking the one that serves", round_.version)
            round_.version = None
        else:
            # Once a round has scores of a version, no other version can replace it: the scores are not
            # comparable.
            raise error

    def send(
        self, lines: Sequence[tuple[str, str]], *, worker: str, version: str | None, timeout_s: float = 30.0
    ) -> MeasurementAnswer:
        """Send measured records and return which of them the service rejected.

        Parameters
        ----------
        lines : sequence of (str, str)
            Id and record line of each.

        Raises
        ------
        ServiceError
            If not every record was acknowledged. It is safe to send them again: the service deduplicates by
            id.
        """
        body = encode_measurements(
            lines,
            worker=worker,
            platform=self.platform,
            version=version,
            dialect=stated_name(self.dialect),
        )
        answer = self._post("/v1/measurements", body, self._clock() + timeout_s)
        return decode_measurement_answer(answer.body, len(lines))

    def _post(
        self, path: str, body: bytes, deadline: float, headers: Mapping[str, str] | None = None
    ) -> HttpAnswer:
        """Send a request; retry it once if the failure is transient and time is left."""
        headers = {"Content-Type": "application/json", **(headers or {})}
        if self._client is not None:
            headers[CLIENT_HEADER] = self._client
        try:
            return self._exchange(path, body, deadline, headers)
        except (Unreachable, Refused) as error:
            pause = _RETRY_PAUSE_S
            if isinstance(error, Refused):
                if not error.is_transient:
                    raise
                pause = error.retry_after or pause
            if self._clock() + pause >= deadline:
                raise
            self._sleep(pause)
        return self._exchange(path, body, deadline, headers)

    def _exchange(self, path: str, body: bytes, deadline: float, headers: Mapping[str, str]) -> HttpAnswer:
        left = deadline - self._clock()
        if left <= 0:
            raise DeadlineExceeded(f"{self.url}: no time left")
        answer = self._transport.post(path, body, {**headers, DEADLINE_HEADER: f"{left:.3f}"}, left)
        if answer.status != 200:
            raise _refusal(answer)
        return answer


def _refusal(answer: HttpAnswer) -> ServiceError:
    try:
        document = json.loads(answer.body)
        message, code = str(document["error"])[:_MAX_MESSAGE], str(document.get("code", ""))[:_MAX_MESSAGE]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        message, code = answer.body[:200].decode(errors="replace"), ""  # a proxy's page, not our answer
    if 200 < answer.status < 400:
        return BadAnswer(f"status {answer.status}, which this service does not send")
    return Refused(answer.status, message, code, _retry_after(answer.headers))


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds in Retry-After; None if it is missing, a date, or out of range."""
    try:
        seconds = float(headers["retry-after"])
    except (KeyError, ValueError):
        return None
    return seconds if 0 <= seconds <= _MAX_DEADLINE_S else None
