"""All agree at once: the parts that go together, and those that do not."""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass
from types import ModuleType

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
from tutti.spec import Member, fields_of, parse


def parts(member: Member) -> list[Member]:
    """What it is made of."""
    return [value for field in fields_of(type(member)) if isinstance(value := getattr(member, field.name), Member)]


def has_usual_parts(member: Member) -> bool:
    """Of a route over a graph the usual one is enough here: which graphs will do is for the suite of the routes."""
    return parts(member) == parts(type(member)())


ROUTES = [route for route in every(Collective) if has_usual_parts(parse(route, Collective))]
MEETING = [route for route in ROUTES if parse(route, Collective).meets]
AGGREGATORS = every(Aggregator)
NOT_LINEAR = [combine for combine in AGGREGATORS if not parse(combine, Aggregator).linear]


def own_test(aggregator: Aggregator) -> ModuleType:
    return importlib.import_module(f"aggregators.test_{aggregator.name.replace('-', '_')}")


def reference(exchange: AllReduce, rows: np.ndarray, samples: np.ndarray, _: int) -> np.ndarray:
    """What every worker ends with, for the contract: the aggregator's own formula, on all or on every tensor alone."""
    formula = own_test(exchange.combine).reference
    if not exchange.combine.by_layer:
        return np.broadcast_to(formula(rows, samples), rows.shape)
    result = np.zeros_like(rows)
    for piece in exchange.layout.slices:
        where = slice(piece.offset, piece.offset + piece.numel)
        result[:, where] = formula(rows[:, where], samples)
    return result


def refusal(exchange: AllReduce, size: int) -> str:
    """What the error says, for the contract; the fewest workers of an aggregator stand in its own test."""
    if not exchange.combine.linear and not exchange.route.meets:
        return f"'{exchange.combine}' needs whole contributions, and on '{exchange.route}' only partial sums travel"
    fewest = getattr(own_test(exchange.combine), "FEWEST", 1)
    return f" = {fewest} workers, and there are {size}" if 1 < size < fewest else ""


@dataclass
class Lower(Aggregator):
    """A member of somebody else's, which needs to see all contributions at once."""

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
@pytest.mark.parametrize("route", MEETING)
def test_any_aggregator_where_contributions_meet(route: str, size: int) -> None:
    rows = torch.randn(size, NUMEL)

    def work(comm: Comm) -> list[float]:
        exchange = AllReduce(parse(route, Collective), Lower()).setup(comm, layout(), "gradients/0")
        buffer = torch.cat([rows[comm.rank], torch.tensor([1.0, float(comm.rank == 0), 0.0])])
        agree(exchange, buffer, comm.rank + 1.0)
        return buffer.tolist()

    for result in on_threads(size, work):
        assert result == [*rows.median(0).values.tolist(), size, 1.0, size]


@pytest.mark.parametrize("combine", NOT_LINEAR)
@pytest.mark.parametrize("route", [route for route in ROUTES if route not in MEETING])
def test_needs_whole_contributions(route: str, combine: str) -> None:
    """The error says what goes together instead, and that does: these are all the routes where contributions meet."""
    with pytest.raises(UserError, match=r"needs whole contributions, and on .* only partial sums travel") as caught:
        parse(f"all-reduce({route}, {combine})", Exchange).setup(World(2).comm(0), layout(), "gradients/0")
    advised = re.search(r"; use (.+), (.+), (.+) or (.+)$", str(caught.value))
    assert advised is not None
    assert {str(parse(text, Collective)) for text in advised.groups()} == {str(parse(r, Collective)) for r in MEETING}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("combine", NOT_LINEAR)
@pytest.mark.parametrize("route", ["star", "all-gather"])
def test_every_aggregator_where_contributions_meet(route: str, combine: str, size: int) -> None:
    """With as many workers as it needs; with fewer it says so, and in what words the spec has."""
    exchange = parse(f"all-reduce({route}, {combine})", Exchange)
    assert isinstance(exchange, AllReduce)
    sentence = refusal(exchange, size)

    def work(comm: Comm) -> list[float]:
        bound = exchange.setup(comm, layout(), "gradients/0")
        buffer = torch.ones(TOTAL)
        agree(bound, buffer, 4.0)
        return buffer[:2].tolist()

    if not sentence:
        assert on_threads(size, work) == [[1.0, 1.0]] * size
        return
    with pytest.raises(UserError, match=rf"^'{combine}' needs at least .*{sentence}; use "):
        on_threads(size, work)


@pytest.mark.parametrize("size", [2, 3, 5])
def test_tensor_by_tensor(size: int) -> None:
    """Adasum adds what is at right angles in one tensor and averages what is the same in another; gaps stay empty."""
    where = layout()
    assert where.slices[1].offset > where.slices[0].numel, "there is a gap"

    def work(comm: Comm) -> Tensor:
        exchange = parse("all-reduce(star, adasum)", Exchange).setup(comm, where, "gradients/0")
        buffer = torch.full((TOTAL,), 7.0)
        weight, bias = (piece.view(buffer) for piece in where.slices)
        weight.zero_().view(-1)[comm.rank] = 1.0
        bias.fill_(2.0)
        agree(exchange, buffer, 1.0)
        return buffer

    for result in on_threads(size, work):
        weight, bias = (piece.view(result) for piece in where.slices)
        assert weight.flatten().tolist() == [1.0] * size + [0.0] * (6 - size)
        assert bias.tolist() == [2.0] * 4
        assert not result[6 : where.slices[1].offset].any()


@pytest.mark.parametrize("garbage", [float("nan"), float("inf"), -2.0, 1e30])
def test_flags_of_a_bad_worker_do_not_hide_what_others_used(garbage: float) -> None:
    """Two workers used the first tensor and nobody the second; with -2 in a plain sum nobody would have used it."""

    def work(comm: Comm) -> Tensor:
        exchange = parse("all-reduce(star, median)", Exchange).setup(comm, layout(), "gradients/0")
        buffer = torch.ones(TOTAL)
        buffer[NUMEL:] = torch.tensor([1.0, 0.0, 1.0])
        if comm.rank == 2:
            buffer[NUMEL : NUMEL + 1] = garbage
        agree(exchange, buffer, 1.0)
        return buffer

    for result in on_threads(3, work):
        assert result[NUMEL].item() in (2.0, 3.0)
        assert result[NUMEL + 1] == 0
        assert result[:NUMEL].equal(torch.ones(NUMEL))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("route", ["ring", "star"])
def test_samples_are_counted_in_half_precision(dtype: torch.dtype, route: str) -> None:
    """Numbers of samples that the type cannot hold: 3 workers with 70001, 30000 and none."""
    samples = (70001.0, 30000.0, 0.0)

    def work(comm: Comm) -> list[float]:
        exchange = parse(f"all-reduce({route})", Exchange).setup(comm, layout(dtype), "gradients/0")
        buffer = torch.full((layout(dtype).total,), (comm.rank + 1) * 1000.0, dtype=dtype)
        agree(exchange, buffer, samples[comm.rank])
        return buffer[:NUMEL].tolist()

    mean = (70001 * 1000 + 30000 * 2000) / 100001
    for result in on_threads(3, work):
        assert result == pytest.approx([mean] * NUMEL, rel=2 * torch.finfo(dtype).eps)


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


@pytest.mark.parametrize(
    ("route", "combine"), [(r, c) for r in ROUTES for c in AGGREGATORS if r in MEETING or c not in NOT_LINEAR]
)
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


def test_its_matrix_is_known_where_there_is_one() -> None:
    """For equal shares, and of linear aggregators only."""
    assert np.array_equal(AllReduce().mixing(4), np.full((4, 4), 0.25))  # type: ignore[arg-type]
    assert np.array_equal(parse("all-reduce(combine=sum)", Exchange).mixing(2, step=7), np.ones((2, 2)))  # type: ignore[arg-type]
    for combine in NOT_LINEAR:
        assert parse(f"all-reduce(star, {combine})", Exchange).mixing(4) is None


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
