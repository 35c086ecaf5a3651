"""What every exchange must do, with every part it can be made of.

Its own test file holds two things for this suite: `reference(exchange, rows, samples, step)`, the formula in numpy for
what each worker's row becomes, and `refusal(exchange, size)`, what the error says where parts do not go together, or
not with so many workers ("" where they do).
"""

from __future__ import annotations

import importlib
from types import ModuleType

import numpy as np
import pytest
import torch
from catalogue import every
from exchanges.test_all_reduce import has_usual_parts, parts
from torch import Tensor
from workers import SIZES, on_threads

from tutti.comm.base import Comm
from tutti.comm.threads import World
from tutti.errors import UserError
from tutti.exchanges.base import Exchange
from tutti.layout import Layout
from tutti.spec import parse

LAYOUT = Layout.of([(name, torch.zeros(shape, dtype=torch.float64)) for name, shape in [("a", (5, 3)), ("b", (2,))]])
STEPS = 3


def own_test(exchange: Exchange) -> ModuleType:
    return importlib.import_module(f"exchanges.test_{exchange.name.replace('-', '_')}")


def refusal(spec: str, size: int) -> str:
    exchange = parse(spec, Exchange)
    return own_test(exchange).refusal(exchange, size)


SPECS = [spec for spec in every(Exchange) if all(map(has_usual_parts, parts(parse(spec, Exchange))))]
REFUSED = [(spec, size) for spec in SPECS for size in SIZES if refusal(spec, size)]
WORKING = [(spec, size) for spec in SPECS for size in SIZES if not refusal(spec, size)]
EVERY = pytest.mark.parametrize("spec", SPECS)
EVERY_WORKING = pytest.mark.parametrize("spec", [spec for spec, size in WORKING if size == 1])


def inputs(size: int, step: int) -> tuple[Tensor, Tensor, list[float]]:
    """Bodies (nothing in the gaps), flags (which worker used which tensor) and samples of all workers."""
    bodies = torch.randn(size, LAYOUT.numel, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
    held = torch.zeros(LAYOUT.numel, dtype=torch.float64)
    for piece in LAYOUT.slices:
        piece.view(held).fill_(1)
    flags = torch.tensor([[float(rank % 2), float(rank == step)] for rank in range(size)], dtype=torch.float64)
    return bodies * held, flags, [(5.0 * rank + step) % 7 + 1 for rank in range(size)]


@pytest.mark.parametrize("strict", [False, True], ids=["tags", "strict"])
@pytest.mark.parametrize(("spec", "size"), WORKING)
def test_agrees_on_what_its_formula_says(spec: str, size: int, strict: bool) -> None:
    """Several steps one after another, with other values and other shares every time."""

    def work(comm: Comm) -> tuple[Exchange, list[Tensor]]:
        exchange = parse(spec, Exchange).setup(comm, LAYOUT, "gradients/0")
        results = []
        for step in range(STEPS):
            bodies, flags, samples = inputs(size, step)
            buffer = torch.cat([bodies[comm.rank], flags[comm.rank], torch.tensor([float("nan")])])
            buffer[: exchange.layout.numel] *= exchange.scale(samples[comm.rank])
            exchange.agree(buffer, step, samples[comm.rank])
            results.append(buffer)
        return exchange, results

    found = on_threads(size, work, strict=strict)
    for step in range(STEPS):
        bodies, flags, samples = inputs(size, step)
        for rank, (exchange, results) in enumerate(found):
            wanted = own_test(exchange).reference(exchange, bodies.numpy(), np.array(samples), step)
            body, flag, weight = results[step].tensor_split([LAYOUT.numel, LAYOUT.numel + 2])
            np.testing.assert_allclose(body.numpy(), wanted[rank], rtol=1e-12, atol=1e-12)
            assert flag.equal(flags.sum(0))
            assert weight.item() in (sum(samples), size), "the weights of all, or their number"


@pytest.mark.parametrize(("spec", "size"), REFUSED)
def test_what_cannot_work_is_refused_at_setup(spec: str, size: int) -> None:
    with pytest.raises(UserError) as caught:
        parse(spec, Exchange).setup(World(size).comm(0), LAYOUT, "gradients/0")
    assert refusal(spec, size) in str(caught.value)
    assert "; use " in str(caught.value), "and what would work"


@EVERY_WORKING
def test_setup_binds_a_copy(spec: str) -> None:
    """One per bucket; the spec itself stays as it was."""
    comm = World(1).comm(0)
    unbound = parse(spec, Exchange)
    one, other = (unbound.setup(comm, LAYOUT, f"gradients/{n}") for n in range(2))
    assert (one.tag, other.tag) == ("gradients/0", "gradients/1")
    assert not hasattr(unbound, "comm")
    assert one == other == unbound
    assert str(one) == str(unbound)


@EVERY_WORKING
def test_state_comes_back(spec: str) -> None:
    exchange = parse(spec, Exchange).setup(World(1).comm(0), LAYOUT, "gradients/0")
    fresh = parse(spec, Exchange).setup(World(1).comm(0), LAYOUT, "gradients/0")
    fresh.load_state_dict(exchange.state_dict())
    assert fresh.state_dict() == exchange.state_dict()


@EVERY
def test_text_reads_back(spec: str) -> None:
    assert parse(str(parse(spec, Exchange)), Exchange) == parse(spec, Exchange)
