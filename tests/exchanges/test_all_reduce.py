"""All agree at once: the parts that go together, and those that do not."""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from catalogue import every
from torch import Tensor, nn
from workers import SIZES, on_threads

from tutti.aggregators.base import Aggregator
from tutti.collectives.base import Collective
from tutti.comm.base import Comm
from tutti.comm.threads import World
from tutti.errors import UserError
from tutti.exchanges.all_reduce import AllReduce
from tutti.exchanges.base import Exchange
from tutti.layout import Layout
from tutti.spec import parse

ROUTES = every(Collective)


def reference(exchange: AllReduce, rows: np.ndarray, samples: np.ndarray) -> np.ndarray:
    """What every worker ends with, for the contract: the aggregator's own formula."""
    module = importlib.import_module(f"aggregators.test_{exchange.combine.name.replace('-', '_')}")
    return np.broadcast_to(module.reference(rows, samples), rows.shape)


@dataclass
class Median(Aggregator):
    """Needs to see all contributions at once."""

    def combine(self, contributions: Tensor, weights: Tensor) -> Tensor:
        return contributions.median(0).values


def layout(dtype: torch.dtype = torch.float32) -> Layout:
    return Layout.of([("weight", torch.zeros(3, 2, dtype=dtype)), ("bias", torch.zeros(4, dtype=dtype))])


NUMEL, TOTAL = layout().numel, layout().total


def agree(exchange: Exchange, buffer: Tensor, samples: float) -> None:
    """As whoever fills the buffer does it: scaled on the way in."""
    buffer[: exchange.layout.numel] *= exchange.scale(samples)
    exchange.agree(buffer, step=0, samples=samples)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("route", [route for route in ROUTES if parse(route, Collective).meets])
def test_any_aggregator_where_contributions_meet(route: str, size: int) -> None:
    rows = torch.randn(size, NUMEL)

    def work(comm: Comm) -> list[float]:
        exchange = AllReduce(parse(route, Collective), Median()).setup(comm, layout(), "gradients/0")
        buffer = torch.cat([rows[comm.rank], torch.tensor([1.0, float(comm.rank == 0), 0.0])])
        agree(exchange, buffer, comm.rank + 1.0)
        return buffer.tolist()

    for result in on_threads(size, work):
        assert result == [*rows.median(0).values.tolist(), size, 1.0, size]


@pytest.mark.parametrize("route", [route for route in ROUTES if not parse(route, Collective).meets])
def test_needs_whole_contributions(route: str) -> None:
    """The error says what goes together instead, and that does."""
    with pytest.raises(UserError, match=r"needs whole contributions, and on .* only partial sums travel") as caught:
        AllReduce(parse(route, Collective), Median()).setup(World(2).comm(0), layout(), "gradients/0")
    advised = re.search(r"use (.+), (.+) or (.+)$", str(caught.value))
    assert advised is not None
    assert all(parse(text, Collective).meets for text in advised.groups())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_samples_cannot_be_counted_in_half_precision(dtype: torch.dtype) -> None:
    comm = World(1).comm(0)
    with pytest.raises(UserError, match=r"'weighted-mean' counts samples .* too coarse; use mean, or float32"):
        AllReduce().setup(comm, layout(dtype), "gradients/0")
    for advised in ("all-reduce(combine=mean)", "all-reduce(combine=sum)"):
        parse(advised, Exchange).setup(comm, layout(dtype), "gradients/0")


@pytest.mark.parametrize("combine", ["mean", "sum"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype: torch.dtype, combine: str) -> None:
    def work(comm: Comm) -> list[float]:
        exchange = parse(f"all-reduce(combine={combine})", Exchange).setup(comm, layout(dtype), "gradients/0")
        buffer = torch.full((layout(dtype).total,), comm.rank + 1.0, dtype=dtype)
        agree(exchange, buffer, 300.0)
        return buffer.tolist()

    body = 2.0 if combine == "mean" else 6.0
    for result in on_threads(3, work):
        assert result == pytest.approx([body] * layout(dtype).numel + [6.0, 6.0, 3.0], rel=torch.finfo(dtype).eps)


def test_a_mean_in_half_precision_does_not_overflow_in_the_sum() -> None:
    def work(comm: Comm) -> float:
        exchange = parse("all-reduce(combine=mean)", Exchange).setup(comm, layout(torch.float16), "gradients/0")
        buffer = torch.full((exchange.layout.total,), 40000.0, dtype=torch.float16)
        agree(exchange, buffer, 1.0)
        return float(buffer[0])

    assert on_threads(4, work) == [40000.0] * 4


@pytest.mark.parametrize("combine", every(Aggregator))
@pytest.mark.parametrize("route", ROUTES)
def test_all_end_with_the_same_bits(route: str, combine: str) -> None:
    def work(comm: Comm) -> bytes:
        exchange = parse(f"all-reduce({route}, {combine})", Exchange).setup(comm, layout(), "gradients/0")
        buffer = torch.randn(TOTAL, generator=torch.Generator().manual_seed(comm.rank))
        agree(exchange, buffer, comm.rank + 1.0)
        return buffer.numpy().tobytes()

    assert len(set(on_threads(5, work))) == 1


@pytest.mark.parametrize("route", ROUTES)
def test_worker_without_samples_changes_nothing(route: str) -> None:
    def work(comm: Comm) -> list[float]:
        exchange = parse(f"all-reduce({route})", Exchange).setup(comm, layout(), "gradients/0")
        buffer = torch.full((TOTAL,), 1000.0 if comm.rank == 1 else 5.0)
        agree(exchange, buffer, 0.0 if comm.rank == 1 else 32.0)
        return buffer[:NUMEL].tolist()

    assert on_threads(3, work) == [[5.0] * NUMEL] * 3


def test_star_beyond_the_last_worker_is_refused_at_setup() -> None:
    with pytest.raises(UserError, match=r"root of 'star' must be below the number of workers \(2\), not 2"):
        parse("all-reduce(star(2))", Exchange).setup(World(2).comm(0), layout(), "gradients/0")


def test_the_default_is_the_gradient_of_the_whole_batch() -> None:
    """Workers with 1, 2 and 5 samples and their own mean losses end with the gradient of all eight."""
    torch.manual_seed(0)
    model = nn.Linear(4, 2).double()
    features, targets = torch.randn(8, 4).double(), torch.randn(8, 2).double()
    shares = list(zip(features.split([1, 2, 5]), targets.split([1, 2, 5]), strict=True))
    parameters = Layout.of(list(model.named_parameters()))

    def gradient(inputs: Tensor, wanted: Tensor) -> Tensor:
        """In the layout of a bucket."""
        buffer = torch.zeros(parameters.total, dtype=torch.float64)
        grads = torch.autograd.grad(nn.functional.mse_loss(model(inputs), wanted), list(model.parameters()))
        for piece, grad in zip(parameters.slices, grads, strict=True):
            piece.view(buffer).copy_(grad)
        return buffer

    gradients = [gradient(*share) for share in shares]

    def work(comm: Comm) -> Tensor:
        exchange = AllReduce().setup(comm, parameters, "gradients/0")
        buffer = gradients[comm.rank].clone()
        agree(exchange, buffer, len(shares[comm.rank][0]))
        return buffer[: parameters.numel]

    for result in on_threads(3, work):
        torch.testing.assert_close(result, gradient(features, targets)[: parameters.numel])
