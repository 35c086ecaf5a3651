"""`run.save` and `run.load`: what is written, what is refused, and what another run takes over."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import signal
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from launching import options
from torch import nn
from training import adam, batch_of, loss_of, momentum, set_up, small_model, train, weights
from workers import on_threads

from tutti import checkpoint_folder
from tutti.checkpoint_folder import Manifest
from tutti.checkpoint_state import make_plain, merge
from tutti.clock import Clock
from tutti.comm.base import Comm
from tutti.engine import distribute
from tutti.errors import RunFailed, UserError
from tutti.launch import launch


def save_at(folder: Path, *steps: int, size: int = 2, keep: int | None = None, spec: str = "ddp") -> None:
    """A run that saves behind these steps."""

    def work(comm: Comm) -> None:
        with set_up(comm, spec) as run:
            done = 0
            for step in steps:
                train(run, range(done, step))
                run.save(folder, keep=keep, step=step)
                done = step

    on_threads(size, work)


def load(folder: Path, size: int = 2, spec: str = "ddp", model: Callable[[], nn.Module] = small_model) -> list[Any]:
    """What each worker gets of it, and its weights."""

    def work(comm: Comm) -> Any:
        with set_up(comm, spec, model()) as run:
            return run.load(folder)["step"], weights(run.replica.model)

    return on_threads(size, work)


def all_raise(size: int, work: Callable[[Comm], Any]) -> list[str]:
    """Every worker's sentence."""

    def catch(comm: Comm) -> str:
        with pytest.raises(UserError) as caught:
            work(comm)
        return str(caught.value)

    return on_threads(size, catch)


def names_in(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


# --- what is written -------------------------------------------------------------------------------------------------


def test_one_folder_with_a_file_for_every_worker_and_a_manifest(tmp_path: Path) -> None:
    save_at(tmp_path / "a" / "b", 2)
    path = tmp_path / "a" / "b" / "step-00000002"
    assert names_in(path) == ["manifest.json", "worker-0.pt", "worker-1.pt"]
    manifest = json.loads((path / "manifest.json").read_text())
    assert (manifest["workers"], manifest["steps"], manifest["format"]) == (2, 2, 1)
    assert manifest["spec"] == "gradient-average(all-reduce(ring))"
    assert manifest["torch"] == torch.__version__
    assert [each["bytes"] for each in manifest["files"]] == [
        (path / f"worker-{rank}.pt").stat().st_size for rank in (0, 1)
    ]
    assert torch.load(path / "worker-1.pt", weights_only=True)["rank"] == 1


@pytest.mark.parametrize(("keep", "left"), [(1, [4]), (2, [3, 4]), (None, [1, 2, 3, 4])])
def test_the_newest_are_kept(keep: int | None, left: list[int], tmp_path: Path) -> None:
    save_at(tmp_path, 1, 2, 3, 4, keep=keep)
    assert names_in(tmp_path) == [f"step-{step:08d}" for step in left]


def test_what_another_run_has_left_is_left_alone_and_the_last_written_is_the_newest(tmp_path: Path) -> None:
    save_at(tmp_path, 5, keep=1)
    save_at(tmp_path, 2, 3, keep=1)
    assert names_in(tmp_path) == ["step-00000003", "step-00000005"]
    assert [step for step, _ in load(tmp_path)] == [3, 3]


def test_the_same_step_again_is_a_second_checkpoint(tmp_path: Path) -> None:
    save_at(tmp_path, 2, 2)
    assert names_in(tmp_path) == ["step-00000002", "step-00000002-2"]
    save_at(tmp_path / "other", 2, 2, keep=1)
    assert names_in(tmp_path / "other") == ["step-00000002-2"]
    load(tmp_path / "other")


def test_a_run_that_was_loaded_stays_the_same_run(tmp_path: Path) -> None:
    save_at(tmp_path, 2)

    def work(comm: Comm) -> None:
        with set_up(comm) as run:
            run.load(tmp_path)
            train(run, range(2, 3))
            run.save(tmp_path, keep=1)

    on_threads(2, work)
    assert names_in(tmp_path) == ["step-00000003"]


def test_what_killed_processes_have_left_is_removed_by_the_next_save(tmp_path: Path) -> None:
    save_at(tmp_path, 2)
    for name in (".step-00000004.draft", ".step-00000001.old", ".step-00000002-2.draft"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "worker-0.pt").write_bytes(b"half")
    (tmp_path / ".mine").touch()
    assert [step for step, _ in load(tmp_path)] == [2, 2], "they are in nobody's way"
    save_at(tmp_path, 3)
    assert names_in(tmp_path) == [".mine", "step-00000002", "step-00000003"]


class Counter:
    """An object of a user's, with a place in the data."""

    def __init__(self, place: int = 0) -> None:
        self.place = place

    def state_dict(self) -> dict[str, Any]:
        return {"place": np.int64(self.place)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.place = state["place"]


def test_objects_are_restored_in_place_and_plain_values_are_returned(tmp_path: Path) -> None:
    def work(comm: Comm) -> None:
        plain = {"epoch": 3, "best": np.float64(0.5), "history": [(1, 2.0), (2, None)], "mean": torch.ones(2)}
        with set_up(comm) as run:
            run.save(tmp_path, counter=Counter(7 + comm.rank), **plain)
        with set_up(comm) as run:
            counter = Counter()
            found = run.load(tmp_path, counter=counter)
        assert counter.place == 7 + comm.rank, "each worker's own"
        assert found.pop("mean").tolist() == [1, 1]
        assert found == {"epoch": 3, "best": 0.5, "history": [(1, 2.0), (2, None)]}

    on_threads(2, work)


def test_a_grad_scaler_and_an_optimizer_with_tensors_of_its_own(tmp_path: Path) -> None:
    """A parameter that only the optimizer knows is in no state_dict of a model."""

    def work(comm: Comm) -> None:
        def build() -> tuple[Any, torch.Tensor, torch.amp.GradScaler]:
            model, extra = small_model(), nn.Parameter(torch.zeros(3, dtype=torch.float64))
            optimizer = torch.optim.Adam([*model.parameters(), extra], lr=0.1)
            return distribute(model, optimizer, "ddp", comm=comm), extra, torch.amp.GradScaler("cpu", init_scale=8.0)

        run, extra, scaler = build()
        with run:
            loss = loss_of(run.model, batch_of(comm.rank, 0)) + (extra - 1).square().sum()
            scaler.scale(loss).backward()
            run.step(scaler)
            scaler.update(4.0)
            run.save(tmp_path, scaler=scaler)
            expected = extra.detach().clone()
            assert expected.abs().min() > 0
        run, extra, scaler = build()
        with run:
            run.load(tmp_path, scaler=scaler)
            assert torch.equal(extra, expected)
            assert scaler.get_scale() == 4.0

    on_threads(2, work)


def test_the_state_of_an_object_that_is_not_handed_in_is_reported(tmp_path: Path) -> None:
    def work(comm: Comm) -> None:
        with set_up(comm) as run:
            run.save(tmp_path, counter=Counter())
            run.load(tmp_path)

    with pytest.warns(UserWarning, match="also holds the state of counter, which was not restored"):
        on_threads(1, work)


# --- what is refused -------------------------------------------------------------------------------------------------


def test_what_cannot_be_loaded_safely_is_refused_on_all_workers(tmp_path: Path) -> None:
    def work(comm: Comm) -> None:
        with set_up(comm) as run:
            run.save(tmp_path, table={"rows": [1, object()]} if comm.rank == 1 else 0)

    sentences = all_raise(3, work)
    assert len(set(sentences)) == 1
    assert "worker 1: table['rows'][1] is a builtins.object, which a checkpoint cannot hold" in sentences[0]
    assert not names_in(tmp_path)


@pytest.mark.parametrize("keep", [0, -1, True, 1.5])
def test_keep_counts_from_one(keep: Any, tmp_path: Path) -> None:
    def work(comm: Comm) -> None:
        with set_up(comm) as run:
            run.save(tmp_path, keep=keep)

    assert all("keep must be a whole number from 1" in sentence for sentence in all_raise(2, work))


@pytest.mark.parametrize(
    ("extras", "sentence"),
    [
        ({"epoch": 3}, r"run\.load(..., epoch=...) takes objects with state_dict"),
        ({"scheduler": Counter()}, "holds no state of 'scheduler'; objects that were saved: none"),
    ],
)
def test_what_load_does_not_take(extras: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    def work(comm: Comm) -> None:
        with set_up(comm) as run:
            run.save(tmp_path)
            run.load(tmp_path, **extras)

    assert all(sentence.replace("\\", "") in said for said in all_raise(2, work))


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def swap(folder: Path) -> None:
    one, other = folder / "worker-0.pt", folder / "worker-1.pt"
    kept = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(kept)


@pytest.mark.parametrize(
    ("harm", "sentence"),
    [
        (
            lambda path: damage(path / "worker-1.pt"),
            "worker-1.pt is damaged: its checksum is not that in manifest.json",
        ),
        (lambda path: os.truncate(path / "worker-1.pt", 99), "worker-1.pt has 99 bytes instead of "),
        (lambda path: (path / "worker-1.pt").unlink(), "worker-1.pt is missing"),
        (lambda path: (path / "manifest.json").unlink(), "manifest.json is missing: this checkpoint is not complete"),
        (lambda path: os.truncate(path / "manifest.json", 50), "manifest.json is damaged"),
        (lambda path: (path / "manifest.json").write_text("{}"), "has checkpoint format None; this tutti reads 1"),
        (swap, "worker-0.pt holds the state that belongs into worker-1.pt: files were exchanged"),
        (
            lambda path: shutil.copy(path.with_name("step-00000002") / "worker-1.pt", path),
            "worker-1.pt ",
        ),
    ],
)
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_too(
    harm: Callable[[Path], Any], sentence: str, tmp_path: Path
) -> None:
    save_at(tmp_path, 2, 4)
    newest = tmp_path / "step-00000004"
    harm(newest)

    def work(comm: Comm) -> None:
        with set_up(comm) as run:
            before = weights(run.replica.model)
            try:
                run.load(tmp_path)
            finally:
                assert torch.equal(weights(run.replica.model), before), "nothing was changed"

    said = all_raise(2, work)
    assert len(set(said)) == 1
    assert sentence in said[0]
    assert said[0].endswith(f"the one before it is complete: load {tmp_path / 'step-00000002'}")
    assert [step for step, _ in load(tmp_path / "step-00000002")] == [2, 2]


def test_a_file_of_another_worker_is_refused_even_with_its_checksum(tmp_path: Path) -> None:
    """Somebody has exchanged the files and what the manifest says of them."""
    save_at(tmp_path, 2)
    path = tmp_path / "step-00000002"
    swap(path)
    manifest = json.loads((path / "manifest.json").read_text())
    first, second = manifest["files"]
    manifest["files"] = [{**second, "name": first["name"]}, {**first, "name": second["name"]}]
    (path / "manifest.json").write_text(json.dumps(manifest))
    assert all("holds the state of worker 1 at step 2" in said for said in all_raise(2, lambda c: _load(c, tmp_path)))


def test_a_file_of_another_run_is_refused_even_with_its_checksum(tmp_path: Path) -> None:
    save_at(tmp_path / "a", 2)
    save_at(tmp_path / "b", 2)
    for name in ("worker-0.pt", "worker-1.pt"):
        shutil.copy(tmp_path / "b" / "step-00000002" / name, tmp_path / "a" / "step-00000002")
    one, other = (json.loads((tmp_path / x / "step-00000002" / "manifest.json").read_text()) for x in "ab")
    (tmp_path / "a" / "step-00000002" / "manifest.json").write_text(json.dumps({**one, "files": other["files"]}))
    said = all_raise(2, lambda comm: _load(comm, tmp_path / "a"))
    assert f"of run {other['run']}, where manifest.json says worker 0, step 2, run {one['run']}" in said[0]


def _load(comm: Comm, folder: Path, model: nn.Module | None = None, optimizer: Any = momentum) -> None:
    with set_up(comm, "ddp", model, optimizer) as run:
        run.load(folder)


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (lambda: small_model().append(nn.Linear(2, 2).double()), "it has no '3.weight'"),
        (lambda: small_model()[:2], "'2.weight' is not in this one"),
        (
            lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 5)).double(),
            "'2.weight' is 2x4 of float64 there and 5x4 of float64 here",
        ),
        (lambda: small_model().float(), "'0.weight' is 4x3 of float64 there and 4x3 of float32 here"),
    ],
)
@pytest.mark.parametrize("size", [2, 3])
def test_another_model_is_refused(model: Callable[[], nn.Module], sentence: str, size: int, tmp_path: Path) -> None:
    save_at(tmp_path, 2)
    path = tmp_path / "step-00000002"
    said = all_raise(size, lambda comm: _load(comm, tmp_path, model()))
    assert set(said) == {f"{path} is of another model: {sentence}"}


def grow(model: nn.Sequential, optimizer: torch.optim.Optimizer) -> None:
    layer = nn.Linear(2, 2).double()
    nn.init.eye_(layer.weight)
    nn.init.zeros_(layer.bias)
    model.append(layer)
    optimizer.add_param_group({"params": list(layer.parameters())})


@pytest.mark.parametrize("spec", ["ddp(bucket=0)", "model-average(relay(chain))"])
def test_what_has_just_changed_is_saved_as_it_is(spec: str, tmp_path: Path) -> None:
    """No forward has seen it yet; here and where it is loaded the run goes on with the same bits."""

    def work(comm: Comm, saves: bool) -> bytes:
        model = small_model()
        optimizer = momentum(model)
        if not saves:
            grow(model, optimizer)
        with distribute(model, optimizer, spec, comm=comm) as run:
            if saves:
                train(run, range(3))
                grow(model, optimizer)
                run.save(tmp_path)
            else:
                run.load(tmp_path)
            train(run, range(3, 6))
            return weights(model).numpy().tobytes()

    assert on_threads(3, lambda comm: work(comm, True)) == on_threads(3, lambda comm: work(comm, False))


def freeze_and_save(comm: Comm, folder: Path, spec: str) -> None:
    with set_up(comm, spec) as run:
        train(run, range(2))
        run.replica.model[0].requires_grad_(False)
        run.replica.model.zero_grad()
        train(run, range(2, 4))
        run.save(folder)


def load_frozen(comm: Comm, folder: Path, spec: str) -> Any:
    model = small_model()
    model[0].requires_grad_(False)
    return load_into(comm, folder, spec, model)


def load_into(comm: Comm, folder: Path, spec: str, model: nn.Module) -> Any:
    with set_up(comm, spec, model) as run:
        run.load(folder)
        train(run, range(4, 6))
        return weights(model)


def test_layers_that_were_frozen_on_the_way_may_be_frozen_from_the_start(tmp_path: Path) -> None:
    on_threads(2, lambda comm: freeze_and_save(comm, tmp_path, "ddp(bucket=0)"))
    first, other = on_threads(2, lambda comm: load_frozen(comm, tmp_path, "ddp(bucket=0)"))
    assert torch.equal(first, other)


def test_but_not_where_the_algorithm_remembers_something_of_them(tmp_path: Path) -> None:
    spec = "model-average(relay(chain), bucket=0)"
    on_threads(2, lambda comm: freeze_and_save(comm, tmp_path, spec))
    said = all_raise(2, lambda comm: load_frozen(comm, tmp_path, spec))
    sentence = f"this state of '{spec}' does not fit: '0.weight' is trained there and not here; load first"
    assert all(each.startswith(sentence) for each in said), said
    assert len(on_threads(2, lambda comm: load_into(comm, tmp_path, spec, small_model()))) == 2


def test_a_checkpoint_has_no_place_inside_join(tmp_path: Path) -> None:
    def work(comm: Comm) -> None:
        with set_up(comm) as run, run.join():
            run.save(tmp_path)

    assert all("run.save() inside run.join() would wait for workers" in each for each in all_raise(2, work))


def test_another_optimizer_is_refused(tmp_path: Path) -> None:
    save_at(tmp_path, 2)
    said = all_raise(2, lambda comm: _load(comm, tmp_path, optimizer=adam))
    assert all(
        "is of another kind of optimizer: only one of the two has the setting 'amsgrad'" in each for each in said
    )

    def in_two_groups(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD([{"params": list(model[0].parameters())}, {"params": list(model[2].parameters())}], 0.1)

    said = all_raise(2, lambda comm: _load(comm, tmp_path, optimizer=in_two_groups))
    assert "its parameter groups have 4 tensors, and here 2 + 2" in said[0]


def test_where_there_is_none(tmp_path: Path) -> None:
    assert all_raise(2, lambda comm: _load(comm, tmp_path)) == [f"there is no checkpoint in {tmp_path}"] * 2
    (said, _) = all_raise(2, lambda comm: _load(comm, tmp_path / "nowhere"))
    assert said == f"there is no folder {tmp_path / 'nowhere'} to load a checkpoint from"
    save_at(tmp_path, 2)
    (said, _) = all_raise(2, lambda comm: _load(comm, tmp_path / "step-00000004"))
    assert said.startswith(f"there is no checkpoint {tmp_path / 'step-00000004'}; the one before it is complete: load ")


def test_workers_with_folders_of_their_own_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on machines that share none."""
    monkeypatch.setattr(checkpoint_folder, "PATIENCE", 0.1)

    def apart(comm: Comm) -> None:
        with set_up(comm) as run:
            run.save(tmp_path / str(comm.rank))

    said = all_raise(2, apart)
    assert set(said) == {
        f"worker 1 does not see in {tmp_path / '1'} what worker 0 has written there; checkpoints need one folder that "
        "all workers share"
    }
    assert not list(tmp_path.rglob("*.pt"))
    save_at(tmp_path / "0", 2)
    said = all_raise(2, lambda comm: _load(comm, tmp_path / str(comm.rank)))
    assert "worker 1 finds another checkpoint in " in said[1]


# --- disks -----------------------------------------------------------------------------------------------------------


def save_with_little_space(comm: Comm, _: Any, folder: str, culprit: int) -> list[str]:
    """The second save fails at one worker; what everybody says."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with set_up(comm) as run:
        train(run, range(2))
        run.save(folder)
        train(run, range(2, 4))
        if comm.rank == culprit:
            resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))
        try:
            run.save(folder)
            said = "nothing"
        except UserError as error:
            said = str(error)
        train(run, range(4, 5))  # all go on together
        return [row.decode() for row in comm.gather_bytes(said.encode())]


@pytest.mark.parametrize("culprit", [0, 1])
def test_a_file_that_cannot_be_written_is_one_sentence_on_all(culprit: int, tmp_path: Path) -> None:
    """Over processes, where the kernel refuses to let one worker's file grow."""
    said = launch(save_with_little_space, (str(tmp_path), culprit), options(3), lambda _: None)
    who = "worker 1: " if culprit == 1 else ""
    assert said == [f"{who}cannot write the checkpoint in {tmp_path}: File too large"] * 3
    assert names_in(tmp_path) == ["step-00000002"]
    _, manifest = checkpoint_folder.find_checkpoints(tmp_path)[0][0]
    assert manifest.steps == 2


def test_a_full_disk_at_the_end_leaves_nothing_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_at(tmp_path, 2)

    def full(_: Manifest, folder: Path) -> None:
        (folder / "manifest.json").write_bytes(b"{")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Manifest, "write", full)
    said = all_raise(2, lambda comm: _save(comm, tmp_path))
    assert said == [f"cannot write the checkpoint in {tmp_path}: No space left on device"] * 2
    assert names_in(tmp_path) == ["step-00000002"]


@pytest.mark.parametrize("folder", ["/proc/nowhere", "/dev/null/checkpoints"])
def test_a_folder_that_cannot_be_written(folder: str) -> None:
    said = all_raise(2, lambda comm: _save(comm, Path(folder)))
    assert len(set(said)) == 1
    assert said[0].startswith(f"cannot write the checkpoint in {folder}: ")


def _save(comm: Comm, folder: Path) -> None:
    with set_up(comm) as run:
        run.save(folder)


def save_for_ever(comm: Comm, report: Any, folder: str) -> None:
    """One checkpoint after another, until a worker is killed."""
    pids = [row.decode() for row in comm.gather_bytes(str(os.getpid()).encode())]
    with set_up(comm, "ddp", nn.Sequential(nn.Linear(3, 200_000), nn.Linear(200_000, 2)).double()) as run:
        for number in range(10_000):
            run.save(folder)
            report({"saved": number, "pids": pids})
            train(run, range(number, number + 1))


@pytest.mark.parametrize(("worker", "after"), [(0, 0.0), (1, 0.01), (0, 0.02), (1, 0.04)])
def test_a_save_that_is_killed_leaves_the_last_good_one(worker: int, after: float, tmp_path: Path) -> None:
    """Wherever it is when that comes; what is left is read to the last byte, and the next save clears up."""
    killed: list[int] = []

    def listen(event: dict[str, Any]) -> None:
        if event["saved"] >= 1 and not killed:
            killed.append(int(event["pids"][worker]))
            Clock().sleep(after)
            os.kill(killed[0], signal.SIGKILL)

    with pytest.raises(RunFailed):
        launch(save_for_ever, (str(tmp_path),), options(2), listen)
    good, bad = checkpoint_folder.find_checkpoints(tmp_path)
    assert good
    assert not bad
    for path, manifest in good:
        assert all(checkpoint_folder.digest(path / file.name) == file.sha256 for file in manifest.files)
    save_at(tmp_path, 1)
    assert all(name.startswith("step-") for name in names_in(tmp_path))


# --- another run -----------------------------------------------------------------------------------------------------


def test_other_workers_take_over_equal_weights_bit_by_bit(tmp_path: Path) -> None:
    save_at(tmp_path, 3)
    expected = load(tmp_path)[0][1]
    with pytest.warns(UserWarning, match="is of 2 worker") as caught:
        loaded = load(tmp_path, size=3)
    assert all(torch.equal(found, expected) for _, found in loaded)
    (said,) = {str(each.message) for each in caught}
    assert said == (
        f"{tmp_path / 'step-00000003'} is of 2 worker(s) with 'gradient-average(all-reduce(ring))', and this run has 3 "
        "with 'gradient-average(all-reduce(ring))': taken over: weights and optimizer; lost: the state of the "
        "algorithm, which begins anew, and the random states of the workers"
    )


def test_another_algorithm_on_as_many_workers_keeps_random_states_and_objects(tmp_path: Path) -> None:
    def leave(comm: Comm) -> None:
        with set_up(comm) as run:
            torch.manual_seed(5)
            run.save(tmp_path, counter=Counter(comm.rank))

    def take_over(comm: Comm) -> tuple[float, int]:
        torch.manual_seed(6)
        counter = Counter()
        with set_up(comm, "relay-sgd") as run:
            run.load(tmp_path, counter=counter)
            return float(torch.rand(())), counter.place

    on_threads(1, leave)
    with pytest.warns(UserWarning, match=r"lost: the state of the algorithm, which begins anew$"):
        found = on_threads(1, take_over)
    torch.manual_seed(5)
    assert found == [(float(torch.rand(())), 0)]


def test_momenta_that_differ_become_their_mean(tmp_path: Path) -> None:
    """allreduce-model: equal weights, and each worker's own momentum; with them one worker trains as all did."""

    def leave(comm: Comm) -> torch.Tensor:
        with set_up(comm, "allreduce-model") as run:
            train(run, range(3))
            run.save(tmp_path)
            state = run.replica.optimizer.state
            return torch.cat([state[p]["momentum_buffer"].reshape(-1) for p in run.replica.model.parameters()])

    def take_over(comm: Comm) -> torch.Tensor:
        with set_up(comm, "ddp") as run:
            run.load(tmp_path)
            state = run.replica.optimizer.state
            return torch.cat([state[p]["momentum_buffer"].reshape(-1) for p in run.replica.model.parameters()])

    momenta = on_threads(3, leave)
    assert not torch.equal(momenta[0], momenta[1])
    with pytest.warns(UserWarning, match="the mean of"):
        found = on_threads(2, take_over)
    for each in found:
        torch.testing.assert_close(each, torch.stack(momenta).mean(0), rtol=1e-15, atol=1e-16)


def test_going_on_alone_is_going_on_as_ddp_on_the_whole_batch(tmp_path: Path) -> None:
    """Two workers, then one with both batches: the same weights as two all along."""

    def two(comm: Comm) -> torch.Tensor:
        with set_up(comm) as run:
            train(run, range(2))
            run.save(tmp_path)
            train(run, range(2, 4))
            return weights(run.replica.model)

    def one(comm: Comm) -> torch.Tensor:
        with set_up(comm, "single", small_model(9)) as run, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run.load(tmp_path)
            for step in range(2, 4):
                run.replica.optimizer.zero_grad()
                inputs, targets = (torch.cat(pair) for pair in zip(batch_of(0, step), batch_of(1, step), strict=True))
                loss_of(run.model, (inputs, targets)).backward()
                run.step()
            return weights(run.replica.model)

    expected = on_threads(2, two)[0]
    torch.testing.assert_close(on_threads(1, one)[0], expected, rtol=1e-12, atol=1e-14)


# --- plain data and means --------------------------------------------------------------------------------------------


def test_plain_data_stays_what_it_is() -> None:
    value = {"a": [1, 2.5, None, True, "x", b"y"], (1, 2): (torch.float32, torch.Size([2])), "z": torch.ones(2)}
    made = make_plain(value, "it")
    assert made.pop("z") is value.pop("z")
    assert made == value
    assert [type(each) for each in made["a"]] == [int, float, type(None), bool, str, bytes]
    assert type(make_plain(np.float32(1), "it")) is float
    with pytest.raises(UserError, match=r"it\[0\] is a numpy.ndarray, which a checkpoint cannot hold"):
        make_plain([np.ones(2)], "it")


def test_the_mean_of_states() -> None:
    def state(x: float, momentum: float | None, steps: int) -> dict[str, Any]:
        own = {} if momentum is None else {0: {"momentum_buffer": torch.tensor([momentum])}}
        return {"w": torch.tensor([x]), "same": torch.tensor([0.1]), "n": torch.tensor(steps), "optimizer": [own]}

    merged, differed = merge([state(1.0, None, 3), state(2.0, 6.0, 4), state(6.0, 3.0, 5)])
    assert differed
    assert (merged["w"].item(), merged["n"].item()) == (3, 3)
    assert merged["optimizer"][0][0]["momentum_buffer"].item() == 3, "what one has not made counts as zero"
    assert torch.equal(merged["same"], torch.tensor([0.1]))
    assert merge([state(1.0, 2.0, 3), state(1.0, 2.0, 3)])[1] is False


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"later": [1, 2]}, ""),
        ({"steps": "many"}, "is damaged"),
        ({"files": [{"name": "../../etc/passwd", "bytes": 1, "sha256": "ab"}]}, "is damaged"),
        ({"files": 3}, "is damaged"),
        ({"number": -1}, "is damaged"),
        ({"extras": {"a": 1}}, "is damaged"),
        ({"format": 2}, "has checkpoint format 2"),
    ],
)
def test_a_manifest_that_was_changed(change: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    """Fields of later versions are passed over."""
    files = [{"name": "worker-0.pt", "bytes": 3, "sha256": "ab", "colour": "red"}]
    data: dict[str, Any] = {"run": "a", "number": 1, "spec": "ddp", "workers": 1, "steps": 3, "files": files}
    data |= {"tutti": "0", "torch": "2", "extras": {}, "format": 1}
    (tmp_path / "manifest.json").write_text(json.dumps({**data, **change}))
    if not sentence:
        assert Manifest.read(tmp_path).steps == 3
        return
    with pytest.raises(UserError, match=sentence):
        Manifest.read(tmp_path)
