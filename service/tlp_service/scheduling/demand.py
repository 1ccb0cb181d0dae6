"""How much each client asks for, and so what it will probably bring."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Container, Iterator
from dataclasses import dataclass

#: Seconds over which it is measured.
_MEASURED_S = 5.0

#: Seconds of silence after which nothing is expected of a client any more.
_GONE_S = 2.0


@dataclass(frozen=True, slots=True)
class _Demand:
    rate: float
    at: float

    def rate_at(self, now: float) -> float:
        return self.rate * math.exp((self.at - now) / _MEASURED_S)


class Demands:
    """Units a second that clients ask for, whether they get them or not, as decaying means.

    Parameters
    ----------
    max_clients : int
        Number of clients to remember; the latest are kept.
    """

    def __init__(self, max_clients: int) -> None:
        self._max_clients = max_clients
        self._demands: OrderedDict[str, _Demand] = OrderedDict()  # the latest last

    def __len__(self) -> int:
        return len(self._demands)

    def add(self, client: str, size: int, now: float) -> None:
        """Note that a client asks for so many units."""
        known = self._demands.pop(client, None)
        rate = known.rate_at(now) if known else 0.0
        self._demands[client] = _Demand(rate + size / _MEASURED_S, now)
        if len(self._demands) > self._max_clients:
            self._demands.popitem(last=False)

    def rates(self, now: float, present: Container[str] = ()) -> Iterator[tuple[str, float]]:
        """Yield the units a second of each client that goes on to ask.

        Parameters
        ----------
        present : container of str
            Clients that wait for what they asked for, and so are silent for a reason.
        """
        for client, demand in self._demands.items():
            if client in present or demand.at >= now - _GONE_S:
                yield client, demand.rate_at(now)
