"""The file of tuned values: found by what they are for, replaced by later ones, and never half-written."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tutti.errors import UserError
from tutti.lab.tuned import Tuned, find_file, find_tuned, make_key, read_tuned, store_tuned
from tutti.machine import find_cache
from tutti.train import Plan

PLAN = Plan(task="digits", model="lenet-5", partition="dirichlet(0.1)")


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "deep" / "tuned.json"
    monkeypatch.setenv("TUTTI_TUNED", str(path))
    return path


def entry(lr: float, spec: str = "d-psgd", plan: Plan = PLAN, workers: int = 8) -> Tuned:
    return Tuned(make_key(spec, plan, workers), {"lr": lr}, 0.9, "2026-01-31T12:00:00+00:00", 10_000, 1)


def test_it_lies_in_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TUTTI_TUNED", raising=False)
    assert find_file() == find_cache() / "tuned.json"


def test_what_is_stored_is_found_for_the_same_work_in_other_words(file: Path) -> None:
    store_tuned([entry(0.08), entry(0.32, spec="relay-sgd")], file)
    assert find_tuned("d-psgd", "model-average(gossip(ring))", replace(PLAN, lr=9.0, seed=3, samples=5), 8).plan == {
        "lr": 0.08
    }
    assert find_tuned("x", "d-psgd", replace(PLAN, partition="dirichlet(alpha=0.10)"), 8).plan == {"lr": 0.08}
    assert find_tuned("x", "relay-sgd", PLAN, 8).plan == {"lr": 0.32}
    assert not list(file.parent.glob("*.draft"))


def test_a_later_sweep_replaces_and_leaves_the_others(file: Path) -> None:
    store_tuned([entry(0.08), entry(0.32, spec="relay-sgd")], file)
    store_tuned([entry(0.16), entry(0.64, workers=4)], file)
    assert len(read_tuned(file)) == 3
    assert find_tuned("x", "d-psgd", PLAN, 8).plan == {"lr": 0.16}
    assert find_tuned("x", "relay-sgd", PLAN, 8).plan == {"lr": 0.32}


def test_what_was_trained_for_longer_or_found_more_stays(file: Path) -> None:
    long = replace(entry(0.08), trained=1000, seeds=2)
    store_tuned([long], file)
    for less in (replace(long, trained=999, seeds=9), replace(long, seeds=1), replace(long, accuracy=0.8)):
        assert store_tuned([replace(less, plan={"lr": 9.0})], file) == [long]
        assert read_tuned(file) == [long]
    for as_good in (long, replace(long, accuracy=0.91), replace(long, trained=2000, seeds=1, accuracy=0.1)):
        later = replace(as_good, plan={"lr": 0.16})
        assert store_tuned([later], file) == []
        assert read_tuned(file) == [later]


def test_it_says_where_it_comes_from() -> None:
    assert entry(0.08).say() == "lr 0.08 (90.0 %, one seed, 2026-01-31)"
    known = replace(entry(0.08), trained=14_370, seeds=3)
    assert known.say() == "lr 0.08 (90.0 % after 14,370 samples, 3 seeds, 2026-01-31)"


@pytest.mark.parametrize(
    ("plan", "workers", "command"),
    [
        (PLAN, 4, "--task digits --workers 4 --partition 'dirichlet(0.1)' --batch 16"),
        (replace(PLAN, momentum=0.0), 8, "--batch 8 --vary momentum=0"),
        (replace(PLAN, optimizer="adam", model="mlp"), 8, "--batch 8 --vary model=mlp --vary optimizer=adam"),
        (replace(PLAN, partition="iid", global_batch=65), 8, "--partition iid --vary global-batch=65"),
    ],
)
@pytest.mark.usefixtures("file")
def test_where_there_is_nothing_the_sweep_that_would_make_it_is_named(plan: Plan, workers: int, command: str) -> None:
    with pytest.raises(UserError) as error:
        find_tuned("d-psgd", "d-psgd", plan, workers)
    said = str(error.value)
    assert said.startswith("there are no tuned values for d-psgd here; make them with: tutti study sweep --algorithms ")
    assert said.endswith(command)
    assert "\n" not in said


@pytest.mark.parametrize("text", ["{", "[]", '{"format": 1}', '{"format": 1, "entries": [{"lr": 1}]}', '{"format": 9}'])
def test_a_file_that_is_none_is_said_to_be_none(file: Path, text: str) -> None:
    file.parent.mkdir()
    file.write_text(text)
    with pytest.raises(UserError, match="remove it and sweep again"):
        find_tuned("d-psgd", "d-psgd", PLAN, 8)
    with pytest.raises(UserError):
        store_tuned([entry(0.1)], file)
    assert file.read_text() == text


def test_it_can_be_read_by_others(file: Path) -> None:
    store_tuned([entry(0.08)], file)
    (row,) = json.loads(file.read_text())["entries"]
    assert row["key"] == {
        "task": "digits",
        "model": "lenet-5",
        "workers": 8,
        "global_batch": 64,
        "partition": str(row["key"]["partition"]),
        "spec": "model-average(gossip(ring))",
        "optimizer": "sgd",
        "momentum": 0.9,
    }
    assert (row["plan"], row["accuracy"], row["samples"], row["seeds"]) == ({"lr": 0.08}, 0.9, 10_000, 1)
