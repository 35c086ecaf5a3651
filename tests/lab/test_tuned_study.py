"""Studies that choose learning rates first: what is run in which order, what is chosen, and what is kept of it."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
from sample_results import make_results, play

from tutti.errors import UserError
from tutti.lab.experiment import Job, Results
from tutti.lab.inquiry import Story
from tutti.lab.tuned import read_tuned, store_tuned
from tutti.lab.tuned_study import TunedStudy, find_family


@dataclass(frozen=True)
class Toy(TunedStudy):
    title: ClassVar[str] = "A toy"
    question: ClassVar[str] = "What a toy does."

    def settings(self) -> list[Job]:
        return [
            self.make_job(f"{name}-{loss:g}", name, 4, partition="iid", loss=loss)
            for name in ("d-psgd", "relay-sgd")
            for loss in (0.0, 0.5)
        ]

    def tuned_for(self, job: Job) -> Job:
        """Only without loss."""
        name = job.name.rpartition("-")[0]
        return dataclasses.replace(job, name=name, plan=dataclasses.replace(job.plan, loss=0.0))

    def tell(self, results: Results) -> Story:
        return Story("It goes.", [])


SMALL = Toy(task="digits", lrs=(0.1, 0.2, 0.4), samples=100, seeds=2, epochs=3, batch=16)
BEST = {"d-psgd": 0.2, "relay-sgd": 0.8}


@pytest.fixture(autouse=True)
def _file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUTTI_TUNED", str(tmp_path / "tuned.json"))


def quality(name: str, _: int) -> dict[str, Any]:
    """The nearer to the best learning rate, the better."""
    if not name.startswith("tune-"):
        return {}
    algorithm, _, lr = name.removeprefix("tune-").rpartition("-lr-")
    return {"accuracies": [0.9 - abs(math.log2(float(lr) / BEST[algorithm])) / 100]}


def test_first_the_learning_rates_with_one_seed_and_few_samples() -> None:
    jobs = SMALL.jobs()
    assert [job.name for job in jobs] == [f"tune-{name}-lr-{lr}" for name in BEST for lr in ("0.1", "0.2", "0.4")]
    assert {(job.plan.samples, job.plan.seed, job.plan.loss) for job in jobs} == {(100, 0, 0.0)}
    assert {(job.plan.global_batch, job.plan.epochs, job.engine) for job in jobs} == {(64, 3, "threads")}


def test_then_what_lies_beyond_the_edge_and_at_last_the_settings_at_their_best() -> None:
    jobs, results = play(SMALL, quality)
    names = [job.name for job in jobs]
    assert names[6:8] == ["tune-relay-sgd-lr-0.8", "tune-relay-sgd-lr-1.6"]
    finals = jobs[8:]
    assert [job.name for job in finals] == [f"{job.name}-seed-{seed}" for seed in (0, 1) for job in SMALL.settings()]
    for job in finals:
        assert job.plan.lr == BEST[job.name.rpartition("-seed-")[0].rpartition("-")[0]]
        assert job.plan.samples is None
    assert SMALL.more(results) == []
    assert SMALL.read(results)["relay-sgd-0.5"].plan["lr"] == 0.8


def test_what_diverged_is_not_chosen() -> None:
    def diverging(name: str, number: int) -> dict[str, Any]:
        return {"accuracies": [0.99], "loss": math.nan} if "lr-0.4" in name else quality(name, number)

    jobs, _ = play(SMALL, diverging)
    rates = {job.plan.lr for job in jobs if job.name.startswith("relay-sgd")}
    assert rates == {0.2}


def test_the_settings_are_ahead_while_learning_rates_are_chosen() -> None:
    tuning = SMALL.jobs()
    assert [job.name for job in SMALL.ahead(Results({}), tuning)] == [
        f"{job.name}-seed-{seed}" for seed in (0, 1) for job in SMALL.settings()
    ]
    results = make_results(tuning)
    finals = SMALL.more(results)
    assert SMALL.ahead(results, finals) == []


def test_one_learning_rate_alone_is_taken_as_it_is() -> None:
    study = dataclasses.replace(SMALL, lrs=(0.3,))
    jobs, results = play(study)
    assert {job.plan.lr for job in jobs} == {0.3}
    assert len(jobs) == 2 * 4
    assert "was not tuned" in study.explain_rates()
    assert study.settle(results) == []


def test_what_was_chosen_is_kept_for_others_and_taken_with_tuned(tmp_path: Path) -> None:
    _, results = play(SMALL, quality)
    (said,) = SMALL.settle(results)
    assert str(tmp_path / "tuned.json") in said
    entries = {entry.key["spec"]: entry for entry in read_tuned(tmp_path / "tuned.json")}
    assert {spec: entry.plan for spec, entry in entries.items()} == {
        "model-average(gossip(ring))": {"lr": 0.2},
        "model-average(relay(double-binary-tree))": {"lr": 0.8},
    }
    assert {(entry.samples, entry.seeds, entry.accuracy) for entry in entries.values()} == {(100, 1, 0.9)}
    assert all(entry.trained > 0 for entry in entries.values())
    store_tuned([dataclasses.replace(entry, trained=10**9) for entry in entries.values()], tmp_path / "tuned.json")
    assert [said.startswith("kept for model-average(") for said in SMALL.settle(results)] == [False, True, True]

    later = dataclasses.replace(SMALL, tuned=True, lrs=(0.1, 0.2))
    jobs, _ = play(later)
    assert len(jobs) == 2 * 4
    assert {job.name.partition("-0")[0]: job.plan.lr for job in jobs} == BEST
    with pytest.raises(UserError, match="there are no tuned values"):
        dataclasses.replace(later, batch=8).jobs()


def test_nothing_is_kept_of_what_only_diverged(tmp_path: Path) -> None:
    _, results = play(SMALL, lambda *_: {"accuracies": [0.1], "loss": math.nan})
    assert SMALL.settle(results) == []
    assert not (tmp_path / "tuned.json").exists()


def test_how_learning_rates_were_chosen_is_said() -> None:
    said = SMALL.explain_rates()
    assert "0.1, 0.2, 0.4" in said
    assert "the first 100 training samples" in said
    assert "all training samples" in dataclasses.replace(SMALL, samples=None).explain_rates()


@pytest.mark.parametrize(
    ("spec", "family"),
    [
        ("allreduce-model", "all-reduce"),
        ("d-psgd", "gossip"),
        ("relay-sgd", "relay"),
        ("d2", "d2"),
        ("ddp", "gradient-average"),
    ],
)
def test_what_an_algorithm_is_in_a_sentence(spec: str, family: str) -> None:
    assert find_family(spec) == family
