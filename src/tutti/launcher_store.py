"""The store in which the workers of one machine meet: the launcher keeps it and listens nowhere.

A worker asks over its channel to the launcher, with JSON. `Shelf` is the launcher's side, `LauncherStore` the worker's:
a c10d store as torch's process groups want one. (torch supports stores written in Python; names of their own are
`deleteKey` and `getNumKeys`.)
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from tutti.channel import ASK, WorkerEnd
from tutti.clock import Clock

_SLICE = 0.2  # seconds that one question may take, so that a thread that waits leaves room for another that sets

Answer = tuple[int, bytes]  # to which worker, and what


# --- the launcher's side ---------------------------------------------------------------------------------------------


@dataclass
class Shelf:
    """Keys and values; who waits for a key is answered when it is there, or when the wait is over."""

    values: dict[str, str] = field(default_factory=dict)
    _waiting: list[tuple[int, list[str], float]] = field(default_factory=list)  # worker, keys, until when

    def ask(self, worker: int, question: bytes, now: float) -> list[Answer]:
        """What is to be answered now."""
        asked = json.loads(question)
        do, values = asked["do"], self.values
        if do == "wait":
            self._waiting.append((worker, asked["keys"], now + asked["seconds"]))
            return self.answer(now)
        found: Any = None
        if do == "set":
            values[asked["key"]] = asked["value"]
        elif do == "get":
            found = values.get(asked["key"])
        elif do == "add":
            found = int(values.get(asked["key"], "0")) + asked["amount"]
            values[asked["key"]] = str(found)
        elif do == "compare":
            found = values.get(asked["key"], "")
            if found == asked["expected"]:
                found = values[asked["key"]] = asked["value"]
        elif do == "delete":
            found = values.pop(asked["key"], None) is not None
        elif do == "count":
            found = len(values)
        return [(worker, json.dumps(found).encode()), *self.answer(now)]

    def answer(self, now: float) -> list[Answer]:
        """Those whose wait is over."""
        answers, waiting = [], []
        for worker, keys, until in self._waiting:
            there = all(key in self.values for key in keys)
            if there or now >= until:
                answers.append((worker, json.dumps(there).encode()))
            else:
                waiting.append((worker, keys, until))
        self._waiting = waiting
        return answers

    def next_end(self) -> float | None:
        """When the first wait is over."""
        return min((until for _, _, until in self._waiting), default=None)


# --- the worker's side -----------------------------------------------------------------------------------------------


class LauncherStore(dist.Store):
    """The store as a worker sees it."""

    def __init__(self, end: WorkerEnd, clock: Clock | None = None) -> None:
        super().__init__()
        self._end, self._clock, self._lock = end, clock or Clock(), threading.Lock()

    def set(self, key: str, value: bytes | str) -> None:
        self._ask("set", key=key, value=_to_text(value))

    def get(self, key: str) -> bytes:
        self.wait([key])
        return _to_bytes(self._ask("get", key=key) or "")

    def add(self, key: str, amount: int) -> int:
        return int(self._ask("add", key=key, amount=amount))

    def compare_set(self, key: str, expected: bytes | str, value: bytes | str) -> bytes:
        return _to_bytes(self._ask("compare", key=key, expected=_to_text(expected), value=_to_text(value)))

    def check(self, keys: Sequence[str]) -> bool:
        return bool(self._ask("wait", keys=list(keys), seconds=0))

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        usual: timedelta = self.timeout  # type: ignore[attr-defined]  # torch's stubs lack it
        limit = self._clock.now() + (usual if timeout is None else timeout).total_seconds()
        while not self._ask("wait", keys=list(keys), seconds=min(_SLICE, max(0.0, limit - self._clock.now()))):
            if self._clock.now() >= limit:
                raise dist.DistStoreError(f"no worker has set {', '.join(keys)}")

    def deleteKey(self, key: str) -> bool:
        return bool(self._ask("delete", key=key))

    def getNumKeys(self) -> int:
        return int(self._ask("count"))

    def delete_key(self, key: str) -> bool:
        return self.deleteKey(key)

    def num_keys(self) -> int:
        return self.getNumKeys()

    def _ask(self, do: str, **question: Any) -> Any:
        with self._lock:
            self._end.send(ASK, json.dumps({"do": do, **question}).encode())
            _, answer = self._end.receive()
        return json.loads(answer)


def _to_text(value: bytes | str) -> str:
    """One character per byte."""
    return (value.encode() if isinstance(value, str) else bytes(value)).decode("latin-1")


def _to_bytes(text: str) -> bytes:
    return text.encode("latin-1")
