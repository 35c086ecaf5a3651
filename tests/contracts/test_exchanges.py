"""What every exchange must do, with every part it can be made of.

Its formula in numpy stands in its own test file: `reference(exchange, rows, samples)` gives what each worker's row
becomes, from all rows and the samples they stand for.
"""

from __future__ import annotations

import importlib

import numpy as np
import pytest
import torch
from catalogue import every
from torch import Tensor
from workers import SIZES, on_threads

from tutti.comm.base import Comm
from tutti.comm.threads import World
from tutti.exchanges.base import Exchange
from tutti.layout import Layout
from tutti.spec import parse

SPECS = every(Exchange)
LAYOUT = Layout.of([(name, torch.zeros(shape, dtype=torch.float64)) for name, shape in [("a", (5, 3)), ("b", (2,))]])
STEPS = 3
EVERY = pytest.mark.parametrize("spec", SPECS)


def reference(exchange: Exchange, rows: np.ndarray, samples: np.ndarray) -> np.ndarray:
    module = importlib.import_module(f"exchanges.test_{exchange.name.replace('-', '_')}")
    return module.reference(exchange, rows, samples)


def inputs(size: int, step: int) -> tuple[Tensor, Tensor, list[float]]:
    """Bodies, flags (which worker used which tensor) and samples of all workers."""
    bodies = torch.randn(size, LAYOUT.numel, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
    flags = torch.tensor([[float(rank % 2), float(rank == step)] for rank in range(size)], dtype=torch.float64)
    return bodies, flags, [(5.0 * rank + step) % 7 + 1 for rank in range(size)]


@pytest.mark.parametrize("strict", [False, True], ids=["tags", "strict"])
@pytest.mark.parametrize("size", SIZES)
@EVERY
def test_agrees_on_what_its_formula_says(spec: str, size: int, strict: bool) -> None:
    """Several steps one after another, with other values and other shares every time."""

    def work(comm: Comm) -> list[Tensor]:
        exchange = parse(spec, Exchange).setup(comm, LAYOUT, "gradients/0")
        results = []
        for step in range(STEPS):
            bodies, flags, samples = inputs(size, step)
            buffer = torch.cat([bodies[comm.rank], flags[comm.rank], torch.tensor([float("nan")])])
            buffer[: exchange.layout.numel] *= exchange.scale(samples[comm.rank])
            exchange.agree(buffer, step, samples[comm.rank])
            results.append(buffer)
        return results

    results = on_threads(size, work, strict=strict)
    for step in range(STEPS):
        bodies, flags, samples = inputs(size, step)
        wanted = reference(parse(spec, Exchange), bodies.numpy(), np.array(samples))
        for rank, result in enumerate(results):
            body, flag, weight = result[step].tensor_split([LAYOUT.numel, LAYOUT.numel + 2])
            np.testing.assert_allclose(body.numpy(), wanted[rank], rtol=1e-12, atol=1e-12)
            assert flag.equal(flags.sum(0))
            assert weight.item() in (sum(samples), size), "the weights of all, or their number"


@EVERY
def test_setup_binds_a_copy(spec: str) -> None:
    """One per bucket; the spec itself stays as it was."""
    comm = World(1).comm(0)
    unbound = parse(spec, Exchange)
    one, other = (unbound.setup(comm, LAYOUT, f"gradients/{n}") for n in range(2))
    assert (one.tag, other.tag) == ("gradients/0", "gradients/1")
    assert not hasattr(unbound, "comm")
    assert one == other == unbound
    assert str(one) == str(unbound)


@EVERY
def test_state_comes_back(spec: str) -> None:
    exchange = parse(spec, Exchange).setup(World(1).comm(0), LAYOUT, "gradients/0")
    fresh = parse(spec, Exchange).setup(World(1).comm(0), LAYOUT, "gradients/0")
    fresh.load_state_dict(exchange.state_dict())
    assert fresh.state_dict() == exchange.state_dict()


@EVERY
def test_text_reads_back(spec: str) -> None:
    assert parse(str(parse(spec, Exchange)), Exchange) == parse(spec, Exchange)
