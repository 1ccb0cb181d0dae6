"""Decaying request rate per client, used to predict near-future load."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Container, Iterator
from dataclasses import dataclass

#: Time constant of the decaying average, in seconds.
_MEASURED_S = 5.0

#: Seconds without a request after which no further load is expected from a client.
_GONE_S = 2.0


@dataclass(frozen=True, slots=True)
class _Demand:
    rate: float
    at: float

    def rate_at(self, now: float) -> float:
        return self.rate * math.exp((self.at - now) / _MEASURED_S)


class Demands:
    """Requested units per second of each client as decaying averages, including refused requests.

    Parameters
    ----------
    max_clients : int
        Maximum number of clients to track. The least recent ones are evicted.
    """

    def __init__(self, max_clients: int) -> None:
        self._max_clients = max_clients
        self._demands: OrderedDict[str, _Demand] = OrderedDict()  # least recent client first

    def __len__(self) -> int:
        return len(self._demands)

    def add(self, client: str, size: int, now: float) -> None:
        """Count a request for `size` units."""
        known = self._demands.pop(client, None)
        rate = known.rate_at(now) if known else 0.0
        self._demands[client] = _Demand(rate + size / _MEASURED_S, now)
        if len(self._demands) > self._max_clients:
            self._demands.popitem(last=False)

    def rates(self, now: float, present: Container[str] = ()) -> Iterator[tuple[str, float]]:
        """Yield name and units per second of each client that is expected to send more requests.

        Parameters
        ----------
        present : container of str
            Clients with requests in progress. They count as active although they send no new ones.
        """
        for client, demand in self._demands.items():
            if client in present or demand.at >= now - _GONE_S:
                yield client, demand.rate_at(now)
