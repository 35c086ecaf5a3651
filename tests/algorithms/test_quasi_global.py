"""Quasi-global momentum beside its paper's algorithm, and what it does with the user's optimizer.

v = beta m + g,    x' = W (x - lr v),    m <- mu m + (1 - mu) (x - x') / lr
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from decentralised_oracle import (
    LINKS,
    Array,
    Point,
    Quadratics,
    exponential,
    follow_all,
    make_quadratics,
    metropolis,
    one_peer_exponential,
    sgd,
    start,
)
from torch import Tensor, nn
from training import adam, batch_of, distribute, loss_of, momentum, set_up, small_model, train, train_alone, weights
from workers import SIZES, on_threads

from tutti.algorithms.base import Algorithm
from tutti.algorithms.quasi_global import QuasiGlobal
from tutti.comm.base import Comm
from tutti.comm.threads import World
from tutti.errors import UserError
from tutti.spec import SpecError, parse

LR, BETA, DECAY, STEPS = 0.1, 0.9, 0.02, 8
Mixing = Callable[[int, int], Array]  # workers, step

MIXINGS: dict[str, Mixing] = {
    **{f"gossip({name})": lambda n, _, links=links: metropolis(n, links(n)) for name, links in LINKS.items()},
    "gossip(exponential)": lambda n, _: exponential(n),
    "gossip(one-peer-exponential)": one_peer_exponential,
    "all-reduce(ring, mean)": lambda n, _: np.full((n, n), 1 / n),
}


def oracle(
    problem: Quadratics,
    mixing: Mixing,
    lrs: list[float],
    beta: float = BETA,
    mu: float = BETA,
    decay: float = 0.0,
    nesterov: bool = False,
) -> Array:
    """The paper's algorithm for all workers at once, with weight decay in the gradient."""
    x = np.tile(start(), (problem.workers, 1))
    m, points = np.zeros_like(x), []
    for step, lr in enumerate(lrs):
        g = problem.gradients(x, step) + decay * x
        local = beta * m + g
        if nesterov:
            local = g + beta * local
        after = mixing(problem.workers, step) @ (x - lr * local)
        if lr > 0:
            m = mu * m + (1 - mu) * (x - after) / lr
        x = after
        points.append(x)
    return np.stack(points)


def ring(workers: int, _: int) -> Array:
    return metropolis(workers, LINKS["ring"](workers))


@pytest.mark.parametrize("strict", [False, True], ids=["tags", "strict"])
@pytest.mark.parametrize("exchange", MIXINGS)
@pytest.mark.parametrize("size", SIZES)
def test_the_formula_on_every_topology(size: int, exchange: str, strict: bool) -> None:
    problem = make_quadratics(size, noise=0.5)
    expected = oracle(problem, MIXINGS[exchange], [LR] * STEPS)
    optimizer = sgd(LR, momentum=BETA)
    found = follow_all(f"quasi-global({exchange}, bucket=0)", problem, STEPS, optimizer, strict=strict)
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("bucket", ["0", "4MiB"])
@pytest.mark.parametrize("foreach", [False, True], ids=["one-by-one", "foreach"])
@pytest.mark.parametrize("nesterov", [False, True], ids=["heavy-ball", "nesterov"])
@pytest.mark.parametrize("mu", [None, 0.0, 0.5])
def test_the_formula_with_every_setting(mu: float | None, nesterov: bool, foreach: bool, bucket: str) -> None:
    problem = make_quadratics(3)
    expected = oracle(problem, ring, [LR] * STEPS, mu=BETA if mu is None else mu, decay=DECAY, nesterov=nesterov)
    optimizer = sgd(LR, momentum=BETA, nesterov=nesterov, weight_decay=DECAY, foreach=foreach)
    said = "" if mu is None else f", mu={mu:g}"
    found = follow_all(f"quasi-global(bucket={bucket}{said})", problem, STEPS, optimizer)
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)


def test_without_momentum_it_is_gossip_alone() -> None:
    problem = make_quadratics(5)
    found, other = (follow_all(name, problem, STEPS, sgd(LR)) for name in ("quasi-global", "model-average(gossip)"))
    np.testing.assert_array_equal(found, other)


@pytest.mark.parametrize("size", [1, 3])
def test_a_schedule_that_ends_at_zero(size: int) -> None:
    """The rate of each step is the one that counts; at zero nothing is divided by it, and m stays as it is."""
    problem, end = make_quadratics(size), 5
    lrs = [LR * (1 + np.cos(np.pi * min(step, end) / end)) / 2 for step in range(end + 1)]
    assert lrs[-1] == 0
    expected = oracle(problem, ring, lrs)
    found = follow_all(
        "quasi-global",
        problem,
        len(lrs),
        sgd(LR, momentum=BETA),
        schedule=lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, end),
    )
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)


def test_the_rate_may_be_a_tensor() -> None:
    problem = make_quadratics(3)
    optimizer = sgd(torch.tensor(LR, dtype=torch.float64), momentum=BETA)  # type: ignore[arg-type]
    found = follow_all("quasi-global", problem, STEPS, optimizer)
    np.testing.assert_allclose(found, oracle(problem, ring, [LR] * STEPS), rtol=1e-10, atol=1e-10)


def two_groups(model: nn.Module) -> torch.optim.SGD:
    first, second = model.parameters()
    return torch.optim.SGD([{"params": [first]}, {"params": [second], "lr": 0.02, "momentum": 0.5}], LR, BETA)


def test_groups_have_their_own_settings() -> None:
    """Each bucket is of one group: lr, momentum and decay are that one's."""
    diagonal = make_quadratics(3)
    diagonal = Quadratics(np.stack([np.diag(np.diag(matrix)) for matrix in diagonal.matrices]), diagonal.targets)
    found = follow_all("quasi-global", diagonal, STEPS, two_groups)
    first = oracle(diagonal, ring, [LR] * STEPS)
    second = oracle(diagonal, ring, [0.02] * STEPS, beta=0.5, mu=0.5)
    np.testing.assert_allclose(found[..., :4], first[..., :4], rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(found[..., 4:], second[..., 4:], rtol=1e-10, atol=1e-10)


def test_the_settings_are_its_own_while_the_next_bucket_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stepping one bucket, the optimizer has that one's group alone: nothing for another to find on the lane."""
    with set_up(World(1).comm(0), "quasi-global", Point(), two_groups) as run:
        step = run.replica.step

        def step_when_others_are_met() -> None:
            run.algorithm.finish()
            step()

        monkeypatch.setattr(run.replica, "step", step_when_others_are_met)
        run.model().sum().backward()
        run.step()
        found = {memory.numel(): memory for memory in run.state_dict()["algorithm"]["memory"]}
    for numel, beta in ((4, BETA), (3, 0.5)):
        torch.testing.assert_close(found[numel], torch.full((numel,), 1 - beta, dtype=torch.float64))


def test_what_it_is_good_for() -> None:
    """With momentum 0.9 on workers that differ: steadily nearer to the optimum than momentum of one's own."""
    problem = make_quadratics(5)
    own, ours = (
        follow_all(name, problem, 40, sgd(0.05, momentum=BETA))[-1]
        for name in ("model-average(gossip)", "quasi-global(gossip)")
    )
    assert np.abs(ours - problem.optimum()).mean() < 0.8 * np.abs(own - problem.optimum()).mean()


def test_over_relay_and_push_sum() -> None:
    """Whatever brings workers to agree: after a while the mean model is where the sum's optimum is."""
    problem = make_quadratics(3)
    for exchange in ("relay(chain, missing=initial)", "push-sum(exponential)"):
        end = follow_all(f"quasi-global({exchange})", problem, 40, sgd(0.1, momentum=0.5))[-1]
        assert np.abs(end.mean(axis=0) - problem.optimum()).max() < 0.02


# --- the user's optimizer --------------------------------------------------------------------------------------------


def test_the_optimizer_keeps_no_momentum_while_the_run_lasts() -> None:
    with set_up(World(1).comm(0), "quasi-global(bucket=0)") as run:
        for step in range(3):
            train(run, range(step, step + 1))
            assert not run.replica.optimizer.state
            assert not run.state_dict()["optimizer"]["state"]
        assert any(memory.abs().max() > 0 for memory in run.state_dict()["algorithm"]["memory"])


def test_a_step_that_fails_leaves_none_behind() -> None:
    with set_up(World(1).comm(0), "quasi-global") as run:

        def fail(*_: Any) -> None:
            raise KeyError("the user's own")

        run.replica.optimizer.register_step_pre_hook(fail)
        with pytest.raises(KeyError):
            train(run, range(1))
        assert not run.replica.optimizer.state


def test_it_begins_with_the_momentum_that_is_there_and_leaves_its_own() -> None:
    """Where m is the optimizer's buffer it goes on as one would by hand, and the optimizer has it afterwards."""
    model, by_hand = small_model(), small_model()
    optimizer, plain = momentum(model), momentum(by_hand)
    batches = [batch_of(0, step) for step in range(3)]
    train_alone(model, optimizer, batches)
    train_alone(by_hand, plain, batches)
    before = [parameter.detach().clone() for parameter in by_hand.parameters()]
    buffers = [plain.state[parameter]["momentum_buffer"].clone() for parameter in by_hand.parameters()]
    with distribute(model, optimizer, "quasi-global(bucket=0)", comm=World(1).comm(0)) as run:
        assert not optimizer.state
        train(run, range(3, 4))
    train_alone(by_hand, plain, [batch_of(0, 3)])
    assert torch.equal(weights(model), weights(by_hand)), "v is torch's own where m is torch's own buffer"
    for parameter, old, buffer in zip(model.parameters(), before, buffers, strict=True):
        expected = 0.9 * buffer + 0.1 * (old - parameter.detach()) / 0.1
        torch.testing.assert_close(optimizer.state[parameter]["momentum_buffer"], expected, rtol=1e-12, atol=1e-14)


def test_a_parameter_without_a_gradient_is_moved_by_agreeing_only() -> None:
    """As torch's SGD skips it, momentum and decay included."""

    def work(comm: Comm) -> list[Tensor]:
        with set_up(comm, "quasi-global(gossip(complete), bucket=0)") as run:
            train(run, range(2))
            before = weights(run.model)
            run.replica.optimizer.zero_grad()
            if comm.rank != 1:
                loss_of(run.model, batch_of(comm.rank, 2)).backward()
            momenta = run.state_dict()["algorithm"]["memory"]
            run.step()
            return [before, weights(run.model), *momenta]

    results = on_threads(2, work)
    one, other = results
    assert one[2].abs().max() > 0
    torch.testing.assert_close(one[1], other[1], rtol=1e-12, atol=1e-14)
    alone = small_model()  # worker 0's half step, by hand
    nn.utils.vector_to_parameters(one[0], alone.parameters())
    optimizer = momentum(alone)
    flat = {id(p): p for p in alone.parameters()}
    for parameter, buffer in zip(reversed(list(flat.values())), one[2:], strict=True):
        optimizer.state[parameter]["momentum_buffer"] = buffer.reshape(parameter.shape).clone()
    train_alone(alone, optimizer, [batch_of(0, 2)])
    torch.testing.assert_close(one[1], (weights(alone) + other[0]) / 2, rtol=1e-12, atol=1e-14)


def refusal(optimizer: Callable[[nn.Module], torch.optim.Optimizer]) -> str:
    with pytest.raises(UserError) as refused:
        on_threads(2, lambda comm: set_up(comm, "quasi-global", optimizer=optimizer))
    return str(refused.value)


class FromElsewhere(torch.optim.SGD):
    """May do with its buffers what it likes."""


def test_other_optimizers_are_refused() -> None:
    sentence = "'quasi-global' has a momentum of its own for torch.optim.SGD, not {}; use SGD"
    assert refusal(adam) == sentence.format("Adam")
    assert refusal(lambda model: FromElsewhere(model.parameters(), LR)) == sentence.format("FromElsewhere")


@pytest.mark.parametrize("setting", [{"dampening": 0.5}, {"maximize": True}])
def test_settings_that_it_does_not_know_are_refused(setting: dict[str, Any]) -> None:
    (name,) = setting
    said = refusal(sgd(LR, momentum=BETA, **setting))
    assert said == f"'quasi-global' knows no {name}, which is set in the optimizer; use SGD without it"


def test_a_refused_optimizer_is_the_users_own() -> None:
    model = small_model()
    optimizer = adam(model)
    with pytest.raises(UserError):
        distribute(model, optimizer, "quasi-global", comm=World(1).comm(0))
    distribute(model, optimizer, "ddp", comm=World(1).comm(0)).close()


def test_its_text() -> None:
    assert str(QuasiGlobal()) == "quasi-global(gossip(ring))"
    assert str(parse("quasi-global(mu=0.5)", Algorithm)) == "quasi-global(gossip(ring), mu=0.5)"
    assert parse("quasi-global(mu=none)", Algorithm) == QuasiGlobal()
    with pytest.raises(SpecError, match="mu of 'quasi-global' must be"):
        parse("quasi-global(mu=1.5)", Algorithm)
    assert (QuasiGlobal().equal, QuasiGlobal().buffers) == (False, "local")
