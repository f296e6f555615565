"""A queue in which clients take turns, however many items each of them has waiting."""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Generic, Protocol, TypeVar


class HasClient(Protocol):
    @property
    def client(self) -> str: ...


T = TypeVar("T", bound=HasClient)


class FairQueue(Generic[T]):
    def __init__(self) -> None:
        self._by_client: OrderedDict[str, deque[T]] = OrderedDict()  # the client whose turn is next comes first

    def __len__(self) -> int:
        return sum(map(len, self._by_client.values()))

    def __iter__(self) -> Iterator[T]:
        return chain.from_iterable(self._by_client.values())

    def put(self, item: T) -> None:
        self._by_client.setdefault(item.client, deque()).append(item)

    def put_back(self, item: T) -> None:
        """Undo `take`: the item becomes the first of its client, and its client is next."""
        self._by_client.setdefault(item.client, deque()).appendleft(item)
        self._by_client.move_to_end(item.client, last=False)

    def take(self) -> T:
        """Remove and return the first item of the next client, which then goes to the back."""
        client, items = self._by_client.popitem(last=False)
        item = items.popleft()
        if items:
            self._by_client[client] = items
        return item

    def take_first(self, accept: Callable[[T], bool]) -> T | None:
        """Take the first accepted item of the first client who has one, or None. The client then goes to the back."""
        for client, items in self._by_client.items():
            if (item := next(filter(accept, items), None)) is not None:
                self.remove(item)
                if client in self._by_client:
                    self._by_client.move_to_end(client)
                return item
        return None

    def remove(self, item: T) -> None:
        items = self._by_client.get(item.client)
        if items and item in items:
            items.remove(item)
            if not items:
                del self._by_client[item.client]
