"""One worker sends garbage: for finding out what an aggregator stands.

    x_k <- -x_k | times * x_k | NaN | N(0, spread²) | 0    k = `worker`; before the exchange within
    x <- agree(x_1 ... x_n)                                the exchange within, for all

`corrupt(all-reduce(star, median), worker=2, by=sign-flip)` plays the worker whose sign is wrong (`sign-flip`), whose
numbers ran away (`huge`), are none (`nan`), are made up (`noise`) or are all nothing (`zero`). What it says of itself
beside that is true: its samples, and which tensors it used. The noise is the same in every run, and another one for
every step and bucket. Bytes and rounds are those of the exchange within.

Paper: Blanchard, El Mhamdi, Guerraoui, Stainer, "Machine learning with adversaries: Byzantine tolerant gradient
descent" (2017), for the noise.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import torch
from torch import Tensor

from tutti.errors import UserError
from tutti.exchanges.base import Exchange
from tutti.spec import Range, part


@dataclass
class Corrupt(Exchange):
    exchange: Exchange = part(Exchange, "all-reduce")
    worker: Annotated[int, Range(least=0)] = 0
    by: Literal["sign-flip", "huge", "nan", "noise", "zero"] = "sign-flip"
    times: float = 1e6
    spread: Annotated[float, Range(least=0)] = 1.0
    seed: Annotated[int, Range(least=0)] = 0

    @property
    def exact(self) -> bool:  # type: ignore[override]
        return self.exchange.exact

    @property
    def tolerates_loss(self) -> bool:  # type: ignore[override]
        return self.exchange.tolerates_loss

    def check(self, workers: int) -> None:
        if self.worker >= workers:
            raise UserError(f"worker of 'corrupt' must be below the number of workers ({workers}), not {self.worker}")
        super().check(workers)

    def prepare(self) -> None:
        self.exchange = self.exchange.setup(self.comm, self.layout, self.tag)

    def scale(self, samples: float) -> float:
        return self.exchange.scale(samples)

    def begin(self, buffer: Tensor) -> None:
        self.exchange.begin(buffer)

    def agree(self, buffer: Tensor, step: int, samples: float) -> None:
        if self.comm.rank == self.worker:
            self._spoil(buffer[: self.layout.numel], step, samples)
        self.exchange.agree(buffer, step, samples)

    def _spoil(self, body: Tensor, step: int, samples: float) -> None:
        match self.by:
            case "sign-flip":
                body.neg_()
            case "huge":
                body.mul_(self.times)
            case "nan":
                body.fill_(torch.nan)
            case "noise":  # made here, so it has not been scaled on the way in
                body.copy_(self._noise(step) * self.scale(samples))
            case "zero":
                body.zero_()

    def _noise(self, step: int) -> Tensor:
        drawn = np.random.default_rng((self.seed, self.worker, step, zlib.crc32(self.tag.encode())))
        return torch.from_numpy(self.spread * drawn.standard_normal(self.layout.numel))

    def state_dict(self) -> dict[str, Any]:
        return self.exchange.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.exchange.load_state_dict(state)
