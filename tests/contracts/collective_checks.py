"""What an operation of a route must do, whatever the wire: in, out, and how the two are held against each other."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tutti.collectives.base import Collective, pieces
from tutti.comm.base import Comm

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
ROOTED = ("reduce", "broadcast", "gather", "scatter")


def contributions(size: int, length: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(size, length, generator=torch.Generator().manual_seed(size * 1000 + length)).to(dtype)


def assert_is_sum(got: Tensor, rows: Tensor) -> None:
    """Within what adding up in any order may round."""
    exact = rows.double().sum(0)
    bound = len(rows) * torch.finfo(rows.dtype).eps * rows.double().abs().sum(0)
    assert ((got.double() - exact).abs() <= bound).all()


def assert_did(operation: str, rows: Tensor, results: Sequence[Tensor], root: int) -> None:
    """The contract of every operation, in the words of collectives/base.py."""
    size = len(rows)
    given = [pieces(row, size) for row in rows]
    got = [pieces(result, size) for result in results]
    if operation == "all-reduce":
        assert_is_sum(results[0], rows)
        assert len({bits(result) for result in results}) == 1
    elif operation == "reduce":
        assert_is_sum(results[root], rows)
    elif operation == "broadcast":
        assert all(result.equal(rows[root]) for result in results)
    elif operation == "reduce-scatter":
        for i in range(size):
            assert_is_sum(got[i][i], torch.stack([piece[i] for piece in given]))
    elif operation == "all-gather":
        assert all(got[j][i].equal(given[i][i]) for i in range(size) for j in range(size))
    elif operation == "gather":
        assert all(got[root][i].equal(given[i][i]) for i in range(size))
    elif operation == "scatter":
        assert all(got[i][i].equal(given[root][i]) for i in range(size))
    else:
        assert all(got[i][j].equal(given[j][i]) for i in range(size) for j in range(size))


def bits(tensor: Tensor) -> bytes:
    return tensor.view(torch.uint8).numpy().tobytes()


def do_all(comm: Comm, route: Collective, operation: str, cases: Sequence[Tensor], root: int = 0) -> list[Tensor]:
    """One worker's part of the operation, for one case after another."""
    route.prepare(comm)
    buffers = [rows[comm.rank].clone() for rows in cases]
    for n, buffer in enumerate(buffers):
        if operation in ROOTED:
            getattr(route, operation)(comm, buffer, f"gradients/{n}", root)
        else:
            route.perform(operation, comm, buffer, f"gradients/{n}")
    return buffers
