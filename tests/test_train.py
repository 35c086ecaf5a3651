"""The reference loop: the same model whatever the route, and measurements that add up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tutti.errors import UserError
from tutti.launch import LaunchOptions, launch
from tutti.train import Plan, train

SHORT = Plan(steps=6, global_batch=32)


def run(spec: str, plan: Plan = SHORT, workers: int = 3, engine: str = "threads") -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    place = LaunchOptions(workers, engine=engine, preload=("sklearn.datasets",))
    rows: list[dict[str, Any]] = launch(train, (spec, plan), place, events.append)
    assert events[0]["event"] == "begin"
    assert events[-1]["event"] == "evaluation"
    return rows


@pytest.mark.parametrize("engine", ["threads", "processes"])
def test_every_route_trains_lenet_as_one_worker_does(engine: str) -> None:
    (alone,) = run("single", workers=1)
    specs = ["gather-scatter", "all-gather", "all-reduce", "ring", "ddp", "gradient-average:all-reduce:star"]
    for spec in specs:
        rows = run(spec, engine=engine)
        for row in rows:
            assert row["evaluations"][-1]["loss"] == pytest.approx(alone["evaluations"][-1]["loss"], rel=1e-4)
        shares = [sum(samples) for samples in zip(*(row["samples"] for row in rows), strict=True)]
        mean_losses = [
            sum(row["losses"][i] * row["samples"][i] for row in rows) / shares[i] for i in range(SHORT.steps or 0)
        ]
        assert mean_losses == pytest.approx(alone["losses"], rel=1e-4)


def test_torch_ddp_trains_the_same_model_where_shares_are_equal() -> None:
    plan = replace(SHORT, global_batch=1437 // 3)  # three steps an epoch, all shares equal
    (alone,) = run("single", plan, workers=1)
    rows = run("torch-ddp", plan, workers=1, engine="processes")
    assert rows[0]["losses"] == pytest.approx(alone["losses"], rel=1e-4)


def test_measurements_add_up() -> None:
    rows = run("ddp", workers=2)
    assert [row["rank"] for row in rows] == [0, 1]
    for row in rows:
        assert len(row["seconds"]) == len(row["exposed"]) == len(row["hidden"]) == len(row["samples"]) == 6
        assert all(0 <= exposed <= total for exposed, total in zip(row["exposed"], row["seconds"], strict=True))
        assert row["evaluations"][-1]["seconds"] == pytest.approx(sum(row["seconds"]))
        assert row["parameters"] == 61706
        # one bucket: 61,706 gradients and 44 elements between them, 10 flags, a weight; each worker sends that once
        assert row["bytes_per_step"] == 4 * (61706 + 44 + 10 + 1)
        assert row["bytes_source"] == "metered"
        assert row["choices"] == {}


def test_it_evaluates_at_the_end_of_every_epoch() -> None:
    rows = run("single", Plan(epochs=2, global_batch=500), workers=1)
    assert [entry["epoch"] for entry in rows[0]["evaluations"]] == [1, 2]
    assert [entry["step"] for entry in rows[0]["evaluations"]] == [3, 6]


def test_the_same_seed_gives_the_same_run_and_another_does_not() -> None:
    first, again, other = (run("ring", replace(SHORT, seed=seed))[0]["losses"] for seed in (1, 1, 2))
    assert first == again
    assert first != other


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_other_optimizers(optimizer: str) -> None:
    rows = run("ddp", replace(SHORT, optimizer=optimizer, lr=0.002), workers=2)
    assert rows[0]["losses"][-1] < rows[0]["losses"][0]


def test_more_workers_than_samples_is_a_users_mistake() -> None:
    plan = Plan(task="synthetic(shape=1x32x32, samples=2)", model="lenet-5", steps=1)
    with pytest.raises(UserError, match="3 workers cannot share 2 samples"):
        run("ddp", plan)


def test_cuda_where_there_is_none_is_a_users_mistake() -> None:
    import torch

    if torch.cuda.is_available():
        assert run("single", replace(SHORT, device="cuda"), workers=1)[0]["losses"]
    else:
        with pytest.raises(UserError, match="no CUDA device"):
            run("single", replace(SHORT, device="cuda"), workers=1)


def test_augmented_batches_do_not_depend_on_the_number_of_workers() -> None:
    """A user's own task with a model of its own, mirrored at random."""
    plan = Plan("own_task:make_task", global_batch=24, epochs=3)
    (alone,) = run("single", plan, workers=1)
    rows = run("ddp", plan, workers=3)
    means = [sum(row["losses"][i] * row["samples"][i] for row in rows) / 24 for i in range(15)]
    assert means == pytest.approx(alone["losses"], rel=1e-5)
    assert rows[0]["parameters"] == 130
