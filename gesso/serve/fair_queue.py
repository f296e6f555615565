"""A queue in which clients take turns, however many requests each of them has waiting."""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Generic, Protocol, TypeVar


class Waiting(Protocol):
    @property
    def client(self) -> str: ...


T = TypeVar("T", bound=Waiting)


class FairQueue(Generic[T]):
    def __init__(self) -> None:
        self._of: OrderedDict[str, deque[T]] = OrderedDict()  # whose turn it is comes first

    def __len__(self) -> int:
        return sum(map(len, self._of.values()))

    def __iter__(self) -> Iterator[T]:
        return chain.from_iterable(self._of.values())

    def put(self, item: T) -> None:
        self._of.setdefault(item.client, deque()).append(item)

    def put_back(self, item: T) -> None:
        """As if it had not been taken: the first of its client's, and its client's turn."""
        self._of.setdefault(item.client, deque()).appendleft(item)
        self._of.move_to_end(item.client, last=False)

    def take(self) -> T:
        """The first of the client whose turn it is; then it is the next one's."""
        client, items = self._of.popitem(last=False)
        item = items.popleft()
        if items:
            self._of[client] = items
        return item

    def take_first(self, wanted: Callable[[T], bool]) -> T | None:
        """Take the first item of the first client whose first item is wanted; then that client goes to the back."""
        for client, items in self._of.items():
            if wanted(items[0]):
                self._of.move_to_end(client, last=False)
                return self.take()
        return None

    def remove(self, item: T) -> None:
        items = self._of.get(item.client)
        if items and item in items:
            items.remove(item)
            if not items:
                del self._of[item.client]
