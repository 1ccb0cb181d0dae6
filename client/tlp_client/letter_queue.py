"""The order in which an outbox sends its letters."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from tlp_client.spool import Letter

#: Maximum characters of the lines in one request.
#: Proxies refuse bodies above 1 MiB by default, and servers read smaller ones faster.
_MAX_REQUEST_CHARACTERS = 900_000


class LetterQueue:
    """Letters by id, oldest first. Not thread-safe: the outbox guards it with its lock.

    If a request is refused as a whole, its letters are *set back*: they are sent after all others, in
    requests that get smaller with each refusal. A letter that makes its request fail therefore does not block
    the others, and it is not dropped.

    A letter that breaks the connection even when it is sent alone may be *set aside*: no request contains it
    until `recall`.

    Parameters
    ----------
    max_batch : int
        Maximum number of letters per request.
    """

    def __init__(self, max_batch: int) -> None:
        self._max_batch = max_batch
        self._ahead: OrderedDict[str, Letter] = OrderedDict()
        self._set_back: OrderedDict[str, Letter] = OrderedDict()
        self._aside: OrderedDict[str, Letter] = OrderedDict()
        self._max_set_back_batch = max_batch
        self.characters = 0  # of the lines of all letters

    def __len__(self) -> int:
        return len(self._ahead) + len(self._set_back) + len(self._aside)

    def __contains__(self, id_: str) -> bool:
        return id_ in self._ahead or id_ in self._set_back or id_ in self._aside

    @property
    def has_next(self) -> bool:
        """Whether there is a next request."""
        return bool(self._ahead or self._set_back)

    @property
    def has_aside(self) -> bool:
        """Whether letters were set aside."""
        return bool(self._aside)

    @property
    def has_set_back(self) -> bool:
        """Whether the queue holds letters whose request was refused."""
        return bool(self._set_back or self._aside)

    def is_set_back(self, letter: Letter) -> bool:
        """Whether a letter was set back, and so comes after those that were never refused."""
        return letter.id in self._set_back

    def add(self, letter: Letter) -> None:
        """Append a letter that is not in the queue."""
        self._ahead[letter.id] = letter
        self.characters += len(letter.line)

    def next_batch(self) -> list[Letter]:
        """Return the letters of the next request, which share version and worker, without removing them."""
        queue, max_batch = (
            (self._ahead, self._max_batch) if self._ahead else (self._set_back, self._max_set_back_batch)
        )
        batch: list[Letter] = []
        characters = 0
        for letter in queue.values():
            characters += len(letter.line)
            is_alike = not batch or (letter.version, letter.worker) == (batch[0].version, batch[0].worker)
            if len(batch) == max_batch or not is_alike or (batch and characters > _MAX_REQUEST_CHARACTERS):
                break
            batch.append(letter)
        return batch

    def set_back(self, batch: Iterable[Letter]) -> None:
        """Send the letters of a refused request after all others, and in smaller requests."""
        refused = [letter for letter in batch if letter.id in self]
        for letter in refused:
            self._ahead.pop(letter.id, None)
            self._set_back.pop(letter.id, None)
            self._set_back[letter.id] = letter
        self._max_set_back_batch = max(1, len(refused) // 2)

    def set_aside(self, letter: Letter) -> None:
        """Leave a letter that was set back out of all requests until `recall`."""
        if self._set_back.pop(letter.id, None) is not None:
            self._aside[letter.id] = letter

    def recall(self) -> None:
        """Put the letters that were set aside back into the queue, after all others."""
        self._set_back.update(self._aside)
        self._aside.clear()

    def remove(self, batch: Iterable[Letter]) -> list[str]:
        """Remove the letters of a successful request, and return the ids of those still in the queue."""
        gone = []
        were_set_back = False
        for letter in batch:
            if letter.id in self._set_back:
                del self._set_back[letter.id]
                were_set_back = True
            elif letter.id in self._ahead:
                del self._ahead[letter.id]
            else:
                continue
            gone.append(letter.id)
            self.characters -= len(letter.line)
        if were_set_back:
            self._max_set_back_batch = min(2 * self._max_set_back_batch, self._max_batch)
        return gone

    def drop_oldest(self) -> str:
        """Remove the oldest letter and return its id; letters set aside or set back go first."""
        _, letter = (self._aside or self._set_back or self._ahead).popitem(last=False)
        self.characters -= len(letter.line)
        return letter.id

    def clear(self) -> None:
        """Remove all letters."""
        self._ahead.clear()
        self._set_back.clear()
        self._aside.clear()
        self._max_set_back_batch = self._max_batch
        self.characters = 0
