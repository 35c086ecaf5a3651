"""`tutti run`: data that is divided, models that are saved, and what is said of workers that differ."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tutti.cli import main
from tutti.lab.record import Record
from tutti.lab.tuned import Tuned, make_key, store_tuned
from tutti.train import Plan

QUICK = ["--steps", "3", "--global-batch", "32", "--engine", "threads", "--workers", "3", "--quiet"]

# --- data that differs -----------------------------------------------------------------------------------------------


def test_a_partition_is_on_record_with_who_got_what(tmp_path: Path) -> None:
    assert main(["run", "ddp", *QUICK, "--partition", "dirichlet(alpha=0.1)", "--out", str(tmp_path)]) == 0
    (record,) = (Record.load(path) for path in tmp_path.glob("*.json"))
    assert record.plan["partition"] == "dirichlet(0.1)"
    assert sum(sum(each["classes"]) for each in record.measurements) == 1437
    assert "Who got what" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("partition", "sentence"),
    [
        ("dirichlet(0)", "dirichlet"),
        ("diriclet", "did you mean 'dirichlet'?"),
        ("by-class(800)", "and there are 1437 samples"),
    ],
)
def test_a_partition_that_cannot_be_is_refused(
    partition: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "ddp", *QUICK, "--partition", partition, "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert said.startswith("tutti: ")
    assert sentence in said
    assert not (tmp_path / "out").exists()


# --- what would not be what was meant --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "options", "sentence"),
    [
        ("ddp", ["--global-batch", "2000"], "2000 samples per step are more than the 1437 there are to train on"),
        ("ddp", ["--batch", "40", "--samples", "100"], "120 samples per step are more than the 100 there are"),
        ("switch(3, ddp, d-psgd)", [], "would never switch: the run ends with step 3"),
        ("switch(1, switch(lr-decay, ring, switch(9, ddp, ring)), d-psgd)", [], "'switch(9, "),
        (
            "switch(1, switch(9, ring, ddp), d-psgd)",
            [],
            "step 9 of the inner switch never comes: it is left behind step 1",
        ),
        (
            "switch(2, ddp, switch(1, ring, ddp))",
            [],
            "step 1 of the inner switch is over when it begins, behind step 2",
        ),
        ("ddp", ["--loss", "-10%"], "--loss must be at least 0, not -10%"),
        ("ddp", ["--global-batch", "2"], "3 workers cannot share 2 samples per step"),
        ("ddp", ["--tensorboard", "/dev/null/logs"], "/dev/null is a file, or not yours to write"),
        ("ddp", ["--task", "mnist", "--data", "."], "the data set mnist is not here"),
    ],
)
def test_it_is_refused_and_nothing_is_left_behind(
    spec: str,
    options: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    quick = ["--steps", "3", "--engine", "threads", "--workers", "3", "--quiet"]
    assert main(["run", spec, *quick, *options, "--out", "out"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("tutti: ")
    assert sentence in said
    assert not list(tmp_path.iterdir())


def test_a_switch_behind_the_last_epoch_is_refused_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--epochs", "2", "--engine", "threads", "--workers", "3", "--out", str(tmp_path / "out")]
    assert main(["compare", "ddp", "switch(46, ddp, d-psgd)", *words]) == 2
    assert "would never switch: the run ends with step 46" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_what_lies_in_the_folder_already_is_told_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for spec in ("ddp", "ring"):
        assert main(["run", spec, *QUICK, "--out", str(tmp_path)]) == 0
    assert f"{tmp_path} holds a record of earlier runs; those of the same names are replaced" in capsys.readouterr().err
    assert main(["run", "ring", *QUICK, "--out", str(tmp_path), "--resume"]) == 0
    assert "earlier runs" not in capsys.readouterr().err


def test_what_was_made_with_another_torch_is_run_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["compare", "ring", "d-psgd", *[word for word in QUICK if word != "--quiet"], "--out", str(tmp_path)]
    assert main(words) == 0
    path = tmp_path / "01-ring.json"
    made = Record.load(path)
    replace(made, versions={**made.versions, "torch": "2.12.0"}).save(path)
    capsys.readouterr()
    assert main([*words, "--resume"]) == 0
    said = capsys.readouterr().err
    assert "01-ring.json is of torch 2.12.0: run again" in said
    assert "02-d-psgd" not in said
    assert said.count("kept") == 1
    assert Record.load(path).versions == made.versions
    assert main([*words, "--resume", "--deadline", "30s"]) == 0
    assert "02-d-psgd.json is of another deadline (600 s): run again" in capsys.readouterr().err


# --- the mean model --------------------------------------------------------------------------------------------------


def test_the_mean_model_is_saved_and_stands_beside_the_workers_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "model.pt"
    assert main(["run", "d-psgd", *QUICK, "--out", str(tmp_path / "out"), "--save", str(path)]) == 0
    said = capsys.readouterr().out
    assert f"model: {path}" in said
    assert said.count("d-psgd: the mean model has ") == 1
    assert sum(tensor.numel() for tensor in torch.load(path).values()) == 61706
    assert sorted(each.name for each in tmp_path.iterdir()) == ["model.pt", "out"]


def test_equal_workers_have_no_line_of_their_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "ddp", *QUICK, "--out", str(tmp_path / "out")]) == 0
    assert "mean model" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("save", "more", "sentence"),
    [
        ("nowhere/model.pt", [], "there is no folder {0}/nowhere for --save {0}/nowhere/model.pt"),
        (".", [], "cannot write --save {0}: it is a folder, or not yours to write"),
        ("model.pt", ["--resume"], "--save needs a run to be made, and --resume may find it finished"),
    ],
)
def test_what_cannot_be_saved_is_refused_before_anything_runs(
    save: str, more: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = str(tmp_path / save)
    assert main(["run", "ddp", *QUICK, "--out", str(tmp_path / "out"), "--save", target, *more]) == 2
    assert sentence.format(tmp_path) in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_one_file_for_several_models_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    specs = tmp_path / "specs.txt"
    specs.write_text("ring\nddp\n")
    assert main(["run", f"@{specs}", *QUICK, "--save", str(tmp_path / "model.pt")]) == 2
    assert "--save keeps one model and there are 2 runs" in capsys.readouterr().err


def test_compare_saves_none(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["compare", "ddp", "--save", "model.pt"])
    assert "unrecognized arguments: --save" in capsys.readouterr().err


# --- tuned values ----------------------------------------------------------------------------------------------------


def test_every_run_takes_the_values_that_are_best_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TUTTI_TUNED", str(tmp_path / "tuned.json"))
    plan = Plan(task="digits", model="lenet-5", global_batch=32)
    rates = {"ddp": 0.02, "ring": 0.04}
    entries = [Tuned(make_key(spec, plan, 3), {"lr": lr}, 0.9, "2026-01-31T12", None, 1) for spec, lr in rates.items()]
    store_tuned(entries, tmp_path / "tuned.json")
    out = tmp_path / "out"
    assert main(["compare", "ddp", "ring", *QUICK, "--tuned", "--samples", "500", "--out", str(out)]) == 0
    records = {record.name: record for record in (Record.load(path) for path in out.glob("*.json"))}
    assert {name: record.plan["lr"] for name, record in records.items()} == rates
    assert {record.plan["samples"] for record in records.values()} == {500}
    assert "tutti: ddp is tuned to lr 0.02 (90.0 %, one seed, 2026-01-31)\n" in capsys.readouterr().err


def test_without_tuned_values_the_sweep_is_named_and_nothing_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TUTTI_TUNED", str(tmp_path / "tuned.json"))
    assert main(["run", "ddp", *QUICK, "--tuned", "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert said.startswith("tutti: there are no tuned values for ddp here; make them with: tutti study sweep ")
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()
