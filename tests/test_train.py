"""The reference loop: the same model whatever the route, and measurements that add up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

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


EVERY_WAY = ["gather-scatter", "all-gather", "all-reduce", "ring", "ddp", "gradient-average:all-reduce:star"]


@pytest.mark.parametrize(("engine", "specs"), [("threads", EVERY_WAY), ("processes", ["gather-scatter", "ddp"])])
def test_every_route_trains_lenet_as_one_worker_does(engine: str, specs: list[str]) -> None:
    """On processes one way of the backend's and one of ours; their own tests have the others there."""
    (alone,) = run("single", workers=1)
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
    (alone,) = run("single", workers=1)
    rows = run("torch-ddp", workers=1, engine="processes")
    assert rows[0]["losses"] == pytest.approx(alone["losses"], rel=1e-4)


def test_measurements_add_up() -> None:
    rows = run("ddp", workers=2)
    assert [row["rank"] for row in rows] == [0, 1]
    for row in rows:
        assert len(row["seconds"]) == len(row["exposed"]) == len(row["hidden"]) == len(row["samples"]) == 6
        assert all(0 <= exposed <= total for exposed, total in zip(row["exposed"], row["seconds"], strict=True))
        assert sum(row["seconds"]) <= row["ends"][-1] == row["evaluations"][-1]["enter"]
        assert row["evaluations"][-1]["enter"] < row["evaluations"][-1]["leave"]
        assert row["ends"] == sorted(row["ends"])
        assert row["parameters"] == 61706
        # one bucket: 61,706 gradients and 44 elements between them, 10 flags, a weight; each worker sends that once
        assert row["bytes_per_step"] == 4 * (61706 + 44 + 10 + 1)
        assert row["bytes_source"] == "metered"
        assert row["choices"] == {}


def test_lost_messages_are_counted_and_cost_their_bytes() -> None:
    """DDP of two sends two messages a step, the same losses in every run of the same seed, and learns the same."""
    plain, lossy, again, other = (
        run("ddp", replace(SHORT, loss=loss, seed=seed), workers=2)
        for loss, seed in ((0.0, 0), (0.3, 0), (0.3, 0), (0.3, 1))
    )
    assert [row["lost"] for row in plain] == [0, 0]
    assert sum(row["lost"] for row in lossy) > 0
    for row, same, without in zip(lossy, again, plain, strict=True):
        assert row["losses"] == same["losses"] == without["losses"]
        assert row["lost"] == same["lost"]
        bucket = without["bytes_per_step"] * 6  # of six steps with two messages each, each about half
        assert row["bytes_per_step"] * 6 == pytest.approx(bucket * (1 + row["lost"] / 12), rel=1e-3)
    assert [row["lost"] for row in other] != [row["lost"] for row in lossy]


def test_a_share_that_cannot_be_lost_is_refused() -> None:
    with pytest.raises(UserError, match="at least 0 and below 1, not 1"):
        replace(SHORT, loss=1.0).check(workers=2)


def test_it_evaluates_at_the_end_of_every_epoch() -> None:
    rows = run("single", Plan(epochs=2, global_batch=30, samples=90), workers=1)
    assert [entry["epoch"] for entry in rows[0]["evaluations"]] == [1, 2]
    assert [entry["step"] for entry in rows[0]["evaluations"]] == [3, 6]


def test_an_epoch_that_is_not_over_counts_for_what_it_is() -> None:
    rows = run("single", Plan(steps=4, epochs=None, global_batch=30, samples=90), workers=1)
    assert [entry["epoch"] for entry in rows[0]["evaluations"]] == pytest.approx([1, 4 / 3])


def test_so_many_samples_make_an_epoch() -> None:
    rows = run("ddp", replace(SHORT, steps=None, epochs=2, samples=100), workers=2)
    assert [entry["step"] for entry in rows[0]["evaluations"]] == [4, 8]
    assert sum(sum(row["samples"]) for row in rows) == 200


def test_the_same_seed_gives_the_same_run_and_another_does_not() -> None:
    first, again, other = (run("ring", replace(SHORT, seed=seed))[0]["losses"] for seed in (1, 1, 2))
    assert first == again
    assert first != other


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_other_optimizers(optimizer: str) -> None:
    rows = run("ddp", replace(SHORT, optimizer=optimizer, lr=0.002), workers=2)
    assert rows[0]["losses"][-1] < rows[0]["losses"][0]


def test_more_workers_than_samples_is_a_users_mistake() -> None:
    plan = Plan(task="synthetic(shape=1x32x32, samples=2)", model="lenet-5", steps=1, global_batch=2)
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


# --- data that differs -----------------------------------------------------------------------------------------------


def test_every_worker_keeps_to_its_own_classes() -> None:
    rows = run("ddp", replace(SHORT, partition="dirichlet(0.01)"), workers=4)
    counts = [row["classes"] for row in rows]
    assert [len(each) for each in counts] == [10] * 4
    assert sum(map(sum, counts)) == 1437
    assert max(map(sum, counts)) - min(map(sum, counts)) <= 1
    assert all(sum(sorted(each)[-5:]) > 0.9 * sum(each) for each in counts), "few classes make up a share"


@pytest.mark.parametrize("partition", ["quantity-skew(0.1)", "dirichlet(0.1)"])
def test_workers_with_samples_of_their_own_train_as_one_on_all_their_batches(partition: str) -> None:
    """Every worker's gradient counts as much as its batch has samples, so that the step is that of the whole batch."""
    plan = replace(SHORT, partition=partition, steps=3)
    rows = run("ddp", plan, workers=3)
    means = [sum(r["losses"][i] * r["samples"][i] for r in rows) / sum(r["samples"][i] for r in rows) for i in range(3)]
    assert means == pytest.approx(_train_on_all(plan, workers=3), rel=1e-4)
    if "skew" in partition:
        assert max(row["samples"][0] for row in rows) > 2 * min(row["samples"][0] for row in rows)


def _train_on_all(plan: Plan, workers: int) -> list[float]:
    """The losses of a plain loop over the batches of all workers together."""
    task, data, model = plan.build()
    optimizer, losses = plan.make_optimizer(model), []
    schedule = plan.make_schedule(optimizer, plan.steps or 0)
    epochs = [plan.make_sampler(data.train.targets, workers, rank).epoch(1) for rank in range(workers)]
    for parts in list(zip(*epochs, strict=True))[: plan.steps]:
        inputs, targets = task.batch(data.train, torch.cat(parts))
        loss = task.loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(float(loss.detach()))
    return losses


def test_iid_shares_belong_to_nobody() -> None:
    assert [row["classes"] for row in run("ddp", workers=2)] == [[], []]


def test_a_partition_that_cannot_be_is_refused_before_any_worker_starts() -> None:
    with pytest.raises(UserError, match=r"'by-class\(800\)' cuts 2 \* 800 shards, and there are 1437 samples"):
        replace(SHORT, partition="by-class(800)").check(2)
    with pytest.raises(UserError, match="16 workers cannot share 5 samples"):
        replace(SHORT, partition="dirichlet", samples=5).check(16)
    replace(SHORT, partition="by-class(700)").check(2)


def test_data_that_is_not_there_is_refused_before_any_worker_starts() -> None:
    with pytest.raises(UserError, match="the data set mnist is not here: looked in /nowhere/mnist"):
        replace(SHORT, task="mnist", data="/nowhere").check(8)


# --- workers that differ ---------------------------------------------------------------------------------------------

APART = replace(SHORT, schedule="constant", partition="dirichlet(0.1)")


@pytest.mark.parametrize("spec", ["d-psgd", "model-average(gossip(ring), order=combine-first)"])
def test_the_mean_model_is_evaluated_and_each_worker_at_the_end(spec: str) -> None:
    plan = replace(APART, steps=None, epochs=2, global_batch=200)
    rows = run(spec, plan, workers=4)
    for row in rows:
        assert [set(entry) - {"distance"} for entry in row["evaluations"]] == [
            set(row["evaluations"][0]) - {"distance"}
        ] * 2
        assert all(entry["distance"] > 0 for entry in row["evaluations"])
        same = ("epoch", "step", "accuracy", "loss", "distance")
        assert [[e[key] for key in same] for e in row["evaluations"]] == [
            [e[key] for key in same] for e in rows[0]["evaluations"]
        ]
    own = [row["own_accuracy"] for row in rows]
    assert all(0 < accuracy < 1 for accuracy in own)
    assert len(set(own)) > 1, "every worker has its own model"


def test_equal_workers_have_neither_distance_nor_own_accuracy() -> None:
    for row in run("ddp", workers=2):
        assert all("distance" not in entry for entry in row["evaluations"])
        assert row["own_accuracy"] is None


def test_evaluating_changes_nothing_and_is_no_traffic_of_training() -> None:
    often, once = replace(APART, steps=None, epochs=3, global_batch=500), replace(APART, steps=9, global_batch=500)
    (first, *_), (again, *_) = run("d-psgd", often), run("d-psgd", replace(once, steps=9))
    assert first["losses"] == again["losses"]
    assert first["evaluations"][-1]["loss"] == again["evaluations"][-1]["loss"]
    # a ring of three: the weights, and the elements between them, go to both neighbours in every step
    assert first["bytes_per_step"] == 2 * 4 * (61706 + 44)


@pytest.mark.parametrize("spec", ["d-psgd", "ddp"])
def test_the_mean_model_is_saved(spec: str, tmp_path: Path) -> None:
    """What a plain model makes of the file is what was measured."""
    path = tmp_path / "model.pt"
    rows: list[dict[str, Any]] = launch(train, (spec, APART, str(path)), LaunchOptions(3, engine="threads"), print)
    assert [each.name for each in tmp_path.iterdir()] == ["model.pt"]
    _, data, model = APART.build()
    model.load_state_dict(torch.load(path))
    with torch.no_grad():
        right = model.eval()(data.test.inputs).argmax(dim=1) == data.test.targets
    assert float(right.float().mean()) == pytest.approx(rows[0]["evaluations"][-1]["accuracy"], abs=1e-3)


def test_a_model_that_cannot_be_saved_there_is_saved_elsewhere_and_the_run_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "model.pt").mkdir()
    (tmp_path / "model.pt" / "taken").touch()
    args = ("ddp", SHORT, str(tmp_path / "model.pt"))
    events: list[dict[str, Any]] = []
    assert len(launch(train, args, LaunchOptions(2, engine="threads"), events.append)) == 2
    (elsewhere,) = (each for each in tmp_path.iterdir() if each.name != "model.pt")
    assert elsewhere.name.startswith("tutti-unsaved-")
    (saved,) = elsewhere.iterdir()
    assert torch.load(saved, weights_only=True)
    (problem,) = (event["problem"] for event in events if event["event"] == "problem")
    assert str(saved) in problem
    assert "Is a directory" in problem
