"""What every exchange must do, with every part it can be made of.

Its own test file holds two things for this suite. `refusal(exchange, size)`: what the error says where parts do not go
together, or not with so many workers ("" where they do). And the formula in numpy. Of an exact one that is
`reference(exchange, rows, samples, step)`: what each worker's row becomes. Of one that leaves workers apart it is
`history(exchange, start, bodies)`: what each worker ends every step with (see exchange_oracle.py), and with it
`sent(exchange, rank, size, step, lengths, item)`: the bytes, where each part's piece has one of these lengths.
"""

from __future__ import annotations

import io
import re
from typing import Any

import numpy as np
import pytest
import torch
from catalogue import every
from exchange_oracle import agree, draw, layout_of, own_test, tell_all
from exchanges.test_all_reduce import has_usual_parts, parts
from logical_time import Links, Timed
from torch import Tensor
from workers import SIZES, on_threads

from tutti.comm.base import Comm
from tutti.comm.metered import metered
from tutti.comm.threads import World
from tutti.errors import UserError
from tutti.exchanges.base import Exchange
from tutti.layout import Layout
from tutti.spec import parse

LAYOUT = Layout.of([(name, torch.zeros(shape, dtype=torch.float64)) for name, shape in [("a", (5, 3)), ("b", (3,))]])
STEPS = 3
ADVICE = re.compile("; (use|take) | needs |: add edges")


def refusal(spec: str, size: int) -> str:
    exchange = parse(spec, Exchange)
    return own_test(exchange).refusal(exchange, size)


SPECS = [spec for spec in every(Exchange) if all(map(has_usual_parts, parts(parse(spec, Exchange))))]
REFUSED = [(spec, size) for spec in SPECS for size in SIZES if refusal(spec, size)]
WORKING = [(spec, size) for spec in SPECS for size in SIZES if not refusal(spec, size)]
EXACT = [(spec, size) for spec, size in WORKING if parse(spec, Exchange).exact]
APART = [(spec, size) for spec, size in WORKING if not parse(spec, Exchange).exact]
EVERY = pytest.mark.parametrize("spec", SPECS)
EVERY_WORKING = pytest.mark.parametrize("spec", [spec for spec, size in WORKING if size == 1])
EVERY_APART = pytest.mark.parametrize("spec", [spec for spec, size in APART if size == 1])
TAGS_OR_STRICT = pytest.mark.parametrize("strict", [False, True], ids=["tags", "strict"])


def sizes_of(spec: str, sizes: tuple[int, ...] = SIZES) -> list[int]:
    return [size for size in sizes if not refusal(spec, size)]


# --- what all agree on -----------------------------------------------------------------------------------------------


def inputs(size: int, step: int) -> tuple[Tensor, Tensor, list[float]]:
    """Bodies (nothing in the gaps), flags (which worker used which tensor) and samples of all workers."""
    bodies = torch.randn(size, LAYOUT.numel, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
    held = torch.zeros(LAYOUT.numel, dtype=torch.float64)
    for piece in LAYOUT.slices:
        piece.view(held).fill_(1)
    flags = torch.tensor([[float(rank % 2), float(rank == step)] for rank in range(size)], dtype=torch.float64)
    return bodies * held, flags, [(5.0 * rank + step) % 7 + 1 for rank in range(size)]


@TAGS_OR_STRICT
@pytest.mark.parametrize(("spec", "size"), EXACT)
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


# --- what each of them ends with -------------------------------------------------------------------------------------


@TAGS_OR_STRICT
@pytest.mark.parametrize(("spec", "size"), APART)
def test_every_worker_ends_each_step_with_what_its_formula_says(spec: str, size: int, strict: bool) -> None:
    """With new values every time, whatever came out of the step before; spare elements are left alone."""
    exchange = parse(spec, Exchange)
    start, bodies = draw(
        size, LAYOUT, max(STEPS, size if exchange.mixing(size) is None else 0)
    )  # what remembers: longer
    expected = own_test(exchange).history(exchange, start, bodies)
    found = tell_all(spec, LAYOUT, start, bodies, strict=strict)
    np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-12)


@EVERY
def test_its_matrix_is_what_one_step_does(spec: str) -> None:
    """Where it says that it has one: with shares that are equal, and at every step anew."""
    for size in sizes_of(spec, (2, 5))[-1:]:
        _, bodies = draw(size, LAYOUT, STEPS)
        matrices = [parse(spec, Exchange).mixing(size, step) for step in range(STEPS)]
        if None in [None if matrix is None else True for matrix in matrices]:
            assert matrices == [None] * STEPS
            continue

        def work(comm: Comm, bodies: Any = bodies) -> list[Tensor]:
            exchange, results = parse(spec, Exchange).setup(comm, LAYOUT, "weights/0"), []
            for step in range(STEPS):
                body = torch.from_numpy(bodies[step, comm.rank]) * exchange.scale(2.0)
                buffer = torch.cat([body, torch.ones(3, dtype=torch.float64)])
                exchange.agree(buffer, step, 2.0)
                results.append(buffer[: LAYOUT.numel])
            return results

        found = np.stack([torch.stack(each).numpy() for each in on_threads(size, work)], axis=1)
        expected = np.stack([matrix @ body for matrix, body in zip(matrices, bodies, strict=True)])
        np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-12)


@EVERY_APART
def test_one_round_and_the_bytes_of_its_formula(spec: str) -> None:
    """On a metered wire whose clock is the messages."""
    exchange, layout = parse(spec, Exchange), layout_of(6, 5, dtype=torch.float32)
    lengths = [len(piece) for piece in torch.empty(layout.numel).tensor_split(exchange.topology.parts)]  # type: ignore[attr-defined]
    for size in sizes_of(spec, (1, 2, 3, 4, 5, 8)):
        links = Links(latency=1.0, seconds_per_byte=0.0)

        def work(comm: Comm, links: Links = links) -> list[tuple[float, float]]:
            timed = Timed(comm, links)
            wire = metered(timed)
            bound, seen = exchange.setup(wire, layout, "weights/0"), []
            for step in range(STEPS):
                timed.reset()
                before = wire.meter.sent("weights")
                bound.agree(torch.zeros(layout.total), step, 1.0)
                seen.append((wire.meter.sent("weights") - before, timed.time))
            return seen

        found = on_threads(size, work)
        for step in range(STEPS):
            for rank in range(size):
                assert found[rank][step][0] == own_test(exchange).sent(exchange, rank, size, step, lengths, item=4)
            assert max(each[step][1] for each in found) == (1 if size > 1 else 0)


# --- what is refused, what is bound, what is kept --------------------------------------------------------------------


@pytest.mark.parametrize(("spec", "size"), REFUSED)
def test_what_cannot_work_is_refused_at_setup(spec: str, size: int) -> None:
    with pytest.raises(UserError) as caught:
        parse(spec, Exchange).setup(World(size).comm(0), LAYOUT, "gradients/0")
    assert refusal(spec, size) in str(caught.value)
    assert ADVICE.search(str(caught.value)), "and what would work"


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
    assert save(fresh.state_dict()) == save(exchange.state_dict())


@EVERY_APART
def test_it_goes_on_from_its_state_bit_by_bit(spec: str) -> None:
    """In another object, that has begun elsewhere; and whoever was asked goes on as if nothing had been. Contributions
    from far away are still missing then."""
    size, layout = max(sizes_of(spec, (1, 2, 4, 5))), layout_of(5, 3, dtype=torch.float32)
    start, bodies = draw(size, layout, 5)

    def work(comm: Comm) -> tuple[list[bytes], list[bytes]]:
        exchange, other = (parse(spec, Exchange).setup(comm, layout, f"weights/{n}") for n in range(2))
        exchange.begin(torch.from_numpy(start).float())
        other.begin(torch.ones(layout.numel))
        agree(exchange, bodies[0, comm.rank], 0)
        file = save(exchange.state_dict())
        whole = [agree(exchange, bodies[step, comm.rank], step).tobytes() for step in range(1, 5)]
        other.load_state_dict(torch.load(io.BytesIO(file), weights_only=True))
        return whole, [agree(other, bodies[step, comm.rank], step).tobytes() for step in range(1, 5)]

    for whole, resumed in on_threads(size, work):
        assert whole == resumed


def save(state: dict[str, Any]) -> bytes:
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()


@EVERY
def test_text_reads_back(spec: str) -> None:
    assert parse(str(parse(spec, Exchange)), Exchange) == parse(spec, Exchange)
