"""Butterfly: pairs swap their whole buffers and add, at distances 1, 2, 4, ...; also called recursive doubling.

    round k    worker i and worker i xor 2^k swap and add
    rounds ceil(log2(n)), bytes on the busiest link ceil(log2(n)) * S

The fewest rounds in which sums can be everywhere while everybody talks to one worker at a time: the way for short
buffers. Where n is no power of two, the workers beyond the largest one below it hand their buffer to a partner first
and get the result from it last; beyond three quarters of the next power that takes one round more. Both of a pair add
the same two numbers, so all workers end with the same bits.

Paper: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH" (2005).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from tutti.collectives.base import NOTHING, Collective, Combine, Cost, add_up
from tutti.comm.base import Comm


@dataclass
class Butterfly(Collective):
    def run(self, comm: Comm, buffer: Tensor, tag: str, combine: Combine = add_up) -> None:
        if comm.size == 1 or buffer.numel() == 0:
            return
        helper, helped, partners = find_partners(comm.rank, comm.size)
        if helper is not None:
            comm.exchange([(helper, buffer)], [], tag)
            comm.exchange([], [(helper, buffer)], tag)
            return
        landing = torch.empty_like(buffer)
        if helped is not None:
            comm.exchange([], [(helped, landing)], tag)
            buffer.add_(landing)
        for partner in partners:
            comm.exchange([(partner, buffer)], [(partner, landing)], tag)
            buffer.add_(landing)
        if helped is not None:
            comm.exchange([(helped, buffer)], [], tag)

    def cost(self, size: int, nbytes: int, operation: str = "all-reduce") -> Cost:
        if operation != "all-reduce":
            raise self.lacks(operation)
        if size == 1:
            return NOTHING
        swaps = size.bit_length() - 1
        inner, outer = 2**swaps, size - 2**swaps
        folds = 1 if outer else 0
        waits = 1 if 2 * outer > inner else 0  # some who hand on a sum have to wait for one that did
        return Cost(
            rounds=swaps + folds + waits,
            busiest=(swaps + folds) * nbytes,
            total=(inner * swaps + 2 * outer) * nbytes,
            path=(swaps + 2 * folds) * nbytes,
        )


@lru_cache(maxsize=256)
def find_partners(rank: int, size: int) -> tuple[int | None, int | None, tuple[int, ...]]:
    """(who swaps in this worker's place, in whose place this one swaps, with whom it swaps)."""
    inner = 1 << (size.bit_length() - 1)
    if rank >= inner:
        return rank - inner, None, ()
    helped = rank + inner if rank + inner < size else None
    return None, helped, tuple(rank ^ (1 << k) for k in range(inner.bit_length() - 1))
