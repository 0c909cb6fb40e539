"""What earlier readings found, kept for later ones of every session."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar, cast

from dashboard.data import Identity

T = TypeVar("T")


class Memory:
    """The newest results that were asked for, a bounded number of them. Sessions share it.

    What was read of an earlier version of a database goes as soon as a later one is seen.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept: OrderedDict[Hashable, Any] = OrderedDict()
        self._versions: dict[Identity, Hashable] = {}
        self._lock = threading.Lock()

    def get(self, identity: Identity, version: Hashable, key: Hashable, read: Callable[[], T]) -> T:
        whole = (identity, version, key)
        with self._lock:
            if self._versions.get(identity, version) != version:
                self._kept = OrderedDict((k, v) for k, v in self._kept.items() if cast("Any", k)[0] != identity)
            self._versions[identity] = version
            if whole in self._kept:
                self._kept.move_to_end(whole)
                return cast("T", self._kept[whole])
        value = read()
        with self._lock:
            if self._versions.get(identity) == version:
                self._kept[whole] = value
            while len(self._kept) > self._limit:
                self._kept.popitem(last=False)
        return value

    def drop(self, identity: Identity, version: Hashable, key: Hashable) -> None:
        with self._lock:
            self._kept.pop((identity, version, key), None)

    def clear(self) -> None:
        with self._lock:
            self._kept.clear()
            self._versions.clear()
