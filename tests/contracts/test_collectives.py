"""What every route must do, for every one found in the folder, and for `native` in every way."""

from __future__ import annotations

import pytest
import torch
from catalogue import every
from torch import Tensor
from workers import SIZES, on_threads

from tutti.collectives.base import Collective
from tutti.comm.base import Comm
from tutti.comm.metered import Meter, metered
from tutti.spec import parse

SPECS = [*every(Collective), "ring(segment=32B)"]  # a segment that every length from 7 on needs several of
LENGTHS = (0, 1, 2, 7, 64, 1000)
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
MODES = pytest.mark.parametrize("strict", [False, True], ids=["tags", "strict"])


def contributions(size: int, length: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(size, length, generator=torch.Generator().manual_seed(size * 1000 + length)).to(dtype)


def assert_is_sum(got: Tensor, rows: Tensor) -> None:
    """Within what adding up in any order may round."""
    exact = rows.double().sum(0)
    bound = len(rows) * torch.finfo(rows.dtype).eps * rows.double().abs().sum(0)
    assert ((got.double() - exact).abs() <= bound).all()


def bits(tensor: Tensor) -> bytes:
    return tensor.view(torch.uint8).numpy().tobytes()


@MODES
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("spec", SPECS)
def test_everybody_ends_with_the_same_sum(spec: str, size: int, strict: bool) -> None:
    cases = [contributions(size, length, dtype) for dtype in DTYPES for length in LENGTHS]

    def work(comm: Comm) -> list[Tensor]:
        route = parse(spec, Collective)
        route.prepare(comm)
        buffers = [rows[comm.rank].clone() for rows in cases]
        for n, buffer in enumerate(buffers):
            route.run(comm, buffer, f"gradients/{n}")
        return buffers

    for rows, *results in zip(cases, *on_threads(size, work, strict=strict), strict=True):
        assert_is_sum(results[0], rows)
        assert len({bits(result) for result in results}) == 1


@pytest.mark.parametrize("spec", SPECS)
def test_a_part_of_a_longer_buffer(spec: str) -> None:
    """In place, and not a byte beside it."""

    def work(comm: Comm) -> Tensor:
        longer = torch.full((30,), -1.0)
        longer[5:-5] = comm.rank + 1
        parse(spec, Collective).run(comm, longer[5:-5], "gradients/0")
        return longer

    for longer in on_threads(3, work):
        assert longer.tolist() == [-1.0] * 5 + [6.0] * 20 + [-1.0] * 5


@MODES
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("spec", [spec for spec in SPECS if parse(spec, Collective).meets])
def test_other_combinations_where_contributions_meet(spec: str, size: int, strict: bool) -> None:
    """Rows come in the order of the workers, whole and once each."""
    rows = contributions(size, 50, torch.float32)

    def combine(given: Tensor) -> Tensor:
        assert given.equal(rows)
        return given.max(0).values

    def work(comm: Comm) -> Tensor:
        buffer = rows[comm.rank].clone()
        parse(spec, Collective).run(comm, buffer, "gradients/0", combine)
        return buffer

    for result in on_threads(size, work, strict=strict):
        assert result.equal(rows.max(0).values)


@pytest.mark.parametrize("length", [840, 1001, 5, 0])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("spec", SPECS)
def test_bytes_are_those_of_the_cost(spec: str, size: int, length: int) -> None:
    """On the metered wire; to the byte where the length divides, else within an element per message."""

    def work(comm: Comm) -> Meter:
        counted = metered(comm)
        parse(spec, Collective).run(counted, torch.zeros(length), "gradients/0")
        return counted.meter

    meters = on_threads(size, work)
    cost = parse(spec, Collective).cost(size, 4 * length)
    sent = [meter.sent("gradients") for meter in meters]
    received = [sum(tally.received for tally in meter.tallies.values()) for meter in meters]
    rounding = 0 if length % size == 0 else 4 * 2 * size
    assert sum(sent) == sum(received) == pytest.approx(cost.total, abs=size * rounding)
    assert max(*sent, *received) == pytest.approx(cost.busiest, abs=rounding)


@pytest.mark.parametrize("spec", SPECS)
def test_cost(spec: str) -> None:
    route = parse(spec, Collective)
    alone = route.cost(1, 1000)
    assert (alone.rounds, alone.busiest, alone.total) == (0, 0, 0)
    for size in SIZES[1:]:
        once, twice = route.cost(size, 1000), route.cost(size, 2000)
        assert once.rounds == twice.rounds >= 1
        assert (twice.busiest, twice.total) == (2 * once.busiest, 2 * once.total)
        assert once.busiest <= once.total <= size * once.busiest


@pytest.mark.parametrize("spec", SPECS)
def test_text_reads_back(spec: str) -> None:
    route = parse(spec, Collective)
    assert parse(str(route), Collective) == route
