"""torch's own DDP as a member: over two real processes and gloo it gives what ours and one worker give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from beside_torch import STEPS, State, compare, convolutional, joint_images, state
from torch import nn
from training import batch_of, joint_batch, loss_of, momentum, small_model, train_alone, weights
from workers import on_torch

from tutti.algorithms.base import Algorithm
from tutti.comm.base import Comm
from tutti.comm.threads import World
from tutti.engine import distribute
from tutti.spec import SpecError, parse

WORKERS = 2


@pytest.fixture(scope="module")
def found() -> list[dict[str, Any]]:
    return on_torch(WORKERS, compare)


def assert_close(one: State, other: State) -> None:
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_allclose(one[name], other[name], rtol=1e-10, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("case", ["plain", "parts", "unused"])
def test_all_workers_hold_the_same_and_it_is_what_ddp_holds(found: list[dict[str, Any]], case: str) -> None:
    for worker in found:
        assert_close(worker[case]["ours"], worker[case]["theirs"])
        assert_close(worker[case]["theirs"], found[0][case]["theirs"])


def test_both_equal_one_worker_on_the_global_batch(found: list[dict[str, Any]]) -> None:
    model = convolutional(norm=False)
    with distribute(model, momentum(model), "single", comm=World(1).comm(0)) as run:
        for step in range(STEPS):
            run.replica.optimizer.zero_grad()
            pictures, labels = joint_images(WORKERS, step)
            nn.functional.cross_entropy(run.model(pictures), labels).backward()
            run.step()
    assert_close(found[0]["plain"]["theirs"], state(model))
    assert_close(found[0]["plain"]["ours"], state(model))


def test_with_batch_normalisation_the_buffers_are_equal_too(found: list[dict[str, Any]]) -> None:
    """DDP hands worker 0's out before a forward, we after a backward: they are compared where they come from."""
    first, second = (worker["norm"] for worker in found)
    assert_close(first["ours"], first["theirs"])
    assert_close(second["ours"], first["ours"])
    parameters = dict(convolutional(norm=True).named_parameters())
    assert_close(*({name: w[name] for name in parameters} for w in (second["theirs"], first["theirs"])))
    assert int(first["theirs"]["1.num_batches_tracked"]) == STEPS


def test_a_saved_run_goes_on_bit_by_bit(found: list[dict[str, Any]]) -> None:
    for worker in found:
        for name, values in worker["plain"]["theirs"].items():
            assert np.array_equal(worker["resumed"][name], values), name


def test_the_loop_gets_the_wrapper_and_the_bytes_come_from_the_formula(found: list[dict[str, Any]]) -> None:
    nbytes = sum(p.nbytes for p in convolutional(norm=False).parameters())
    for worker in found:
        facts = worker["facts"]
        assert (facts["wrapped"], facts["own model"]) == ("DistributedDataParallel", True)
        assert (facts["source"], facts["steps"]) == ("formula", STEPS)
        assert facts["sent"] == STEPS * 2 * (WORKERS - 1) / WORKERS * nbytes
        assert "call run.step()" in facts["refused"]


def test_after_close_the_model_is_the_users_own(found: list[dict[str, Any]]) -> None:
    one, other = (worker["facts"] for worker in found)
    assert one["own step after close"]
    assert other["own step after close"]
    assert_close(one["after a second run"], other["after a second run"])


def one_by_one(comm: Comm) -> Any:
    """Two optimizers, which step one after the other with the gradients of one backward."""
    model = small_model()
    both = [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in (model[0], model[2])]
    with distribute(model, both, "torch-ddp", comm=comm) as run:
        for step in range(3):
            model.zero_grad()
            loss_of(run.model, batch_of(comm.rank, step)).backward()
            for each in both:
                run.step(optimizer=each)
        return weights(model).numpy()


def test_optimizers_may_step_one_by_one() -> None:
    model = small_model()
    reference = torch.optim.SGD(model.parameters(), lr=0.1)
    train_alone(model, reference, [joint_batch(WORKERS, step) for step in range(3)])
    for each in on_torch(WORKERS, one_by_one):
        np.testing.assert_allclose(each, weights(model).numpy(), rtol=1e-12)


def test_a_bucket_of_nothing_is_refused() -> None:
    with pytest.raises(SpecError, match="bucket of 'torch-ddp' must be at least 1B, not 0"):
        parse("torch-ddp(bucket=0)", Algorithm)
