"""Right results pass, and one wrong element anywhere, or a piece in the wrong place, does not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tutti.collectives.base import OPERATIONS, pieces
from tutti.lab.bench.contents import Contents


def oracle(operation: str, buffers: list[Tensor], worker: int) -> Tensor:
    """The whole buffer behind an operation, -1 where nothing is promised; from the contract's sentences."""
    size, total = len(buffers), torch.stack(buffers).double().sum(0).to(buffers[0].dtype)
    cut = [pieces(buffer, size) for buffer in buffers]
    nothing = [torch.full_like(piece, -1) for piece in cut[0]]
    results = {
        "all-reduce": total,
        "reduce": total if worker == 0 else torch.cat(nothing),
        "broadcast": buffers[0],
        "reduce-scatter": torch.cat([p if i == worker else nothing[i] for i, p in enumerate(pieces(total, size))]),
        "all-gather": torch.cat([cut[i][i] for i in range(size)]),
        "gather": torch.cat([cut[i][i] for i in range(size)]) if worker == 0 else torch.cat(nothing),
        "scatter": torch.cat([cut[0][i] if i == worker else nothing[i] for i in range(size)]),
        "all-to-all": torch.cat([cut[i][worker] for i in range(size)]),
    }
    return results[operation]


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("workers", [1, 2, 3, 5])
def test_right_results_pass_and_a_single_wrong_element_does_not(operation: str, workers: int) -> None:
    contents = Contents(30 * workers, torch.float32, workers)
    buffers = [contents.of(worker) for worker in range(workers)]
    for worker in range(workers):
        right = oracle(operation, buffers, worker)
        assert contents.is_right(operation, worker, right)
        for place in range(right.numel()):
            spoilt = right.clone()
            spoilt[place] += 1
            assert contents.is_right(operation, worker, spoilt) == (float(right[place]) == -1)


@pytest.mark.parametrize("operation", ["all-gather", "all-reduce", "broadcast"])
def test_pieces_in_each_others_place_are_found(operation: str) -> None:
    """Also where they are powers of two long, and longer than the pattern."""
    contents = Contents(2**16, torch.float32, 4)
    right = oracle(operation, [contents.of(worker) for worker in range(4)], 0)
    first, second, *others = pieces(right, 4)
    assert not contents.is_right(operation, 0, torch.cat([second, first, *others]))


def test_what_was_there_before_is_not_right() -> None:
    """A route that does nothing is found out, whatever the operation."""
    contents = Contents(64, torch.float32, 4)
    for operation in OPERATIONS:
        idle = [contents.is_right(operation, worker, contents.of(worker)) for worker in range(4)]
        assert not all(idle), operation


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("workers", [2, 8, 100, 200])
def test_sums_are_exact_in_every_order(dtype: torch.dtype, workers: int) -> None:
    contents = Contents(500, dtype, workers)
    buffers = [contents.of(worker) for worker in range(workers)]
    forward, backward = buffers[0].clone(), buffers[-1].clone()
    for buffer in buffers[1:]:
        forward += buffer
    for buffer in buffers[-2::-1]:
        backward += buffer
    assert contents.is_right("all-reduce", 0, forward)
    assert contents.is_right("all-reduce", 0, backward)
    assert len({tuple(buffer.tolist()) for buffer in buffers[:2]}) == 2
