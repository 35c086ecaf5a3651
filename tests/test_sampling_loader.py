"""The sampler in torch's DataLoader, with and without worker processes, and its position in an epoch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from launching import ignore, options
from sampling_targets import BATCH, SAMPLES, draw_with_every_sampler
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, Sampler, TensorDataset

from tutti.errors import UserError
from tutti.launch import launch
from tutti.sampling import EpochSampler

DATASET = TensorDataset(torch.arange(SAMPLES))
STEPS = 6  # ceil(53 / 10)
LOADERS = {
    "in this process": {},
    "with workers": {"num_workers": 2},
    "with persistent workers": {"num_workers": 2, "persistent_workers": True},
}
EVERY_LOADER = pytest.mark.parametrize("how", LOADERS.values(), ids=LOADERS)
WITH_WORKERS = pytest.mark.parametrize("how", list(LOADERS.values())[1:], ids=list(LOADERS)[1:])


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def make(workers: int = 1, rank: int = 0, **changes: Any) -> EpochSampler:
    return EpochSampler(SAMPLES, BATCH, workers, rank, **changes)


def loader_of(sampler: EpochSampler, how: dict[str, Any]) -> DataLoader[Any]:
    return DataLoader(DATASET, batch_sampler=sampler, **how)


def drawn(loader: Any) -> list[list[int]]:
    return [batch.tolist() for (batch,) in loader]


def expected(number: int, workers: int = 1, rank: int = 0) -> list[list[int]]:
    return [indices.tolist() for indices in make(workers, rank).epoch(number)]


# --- a batch sampler -------------------------------------------------------------------------------------------------


def test_it_is_torchs_sampler_of_lists_of_ints() -> None:
    sampler = make()
    assert isinstance(sampler, Sampler)
    batches = list(sampler)
    assert all(isinstance(batch, list) and type(batch[0]) is int for batch in batches)
    assert len(sampler) == len(batches) == STEPS
    assert list(BatchSampler(range(3), 2, False)) == [[0, 1], [2]], "as torch's own gives them"


@EVERY_LOADER
def test_a_loader_draws_epoch_after_epoch(how: dict[str, Any]) -> None:
    loader = loader_of(make(2, 1), how)
    assert len(loader) == STEPS
    for number in range(3):
        assert drawn(loader) == expected(number, 2, 1)


@EVERY_LOADER
def test_set_epoch_says_which_one(how: dict[str, Any]) -> None:
    sampler = make()
    loader = loader_of(sampler, how)
    for number in (4, 0, 0, 7):
        sampler.set_epoch(number)
        assert drawn(loader) == expected(number)
    assert drawn(loader) == expected(8), "and then the next one"


@EVERY_LOADER
def test_an_epoch_left_early_begins_again(how: dict[str, Any]) -> None:
    """Two loader workers have drawn four of the six batches ahead when the first one comes."""
    sampler = make()
    loader = loader_of(sampler, how)
    for _ in range(2):
        assert next(iter(loader))[0].tolist() == expected(0)[0]
    assert drawn(loader) == expected(0)
    sampler.set_epoch(5)
    assert next(iter(loader))[0].tolist() == expected(5)[0]
    sampler.set_epoch(6)
    assert drawn(loader) == expected(6), "set_epoch says that the next one is wanted"


@EVERY_LOADER
def test_counted_an_epoch_is_over_when_the_loop_has_taken_all(how: dict[str, Any]) -> None:
    sampler = make()
    loader = sampler.counted(loader_of(sampler, how))
    assert len(loader) == STEPS
    for step, _ in enumerate(loader, start=1):
        if step == STEPS - 1:
            break  # its worker processes have drawn the last one
    assert drawn(loader) == expected(0)
    for step, _ in enumerate(loader, start=1):
        if step == STEPS:
            break
    assert drawn(loader) == expected(2), "one that was left after its last batch is complete"


def test_a_data_set_has_its_own_number() -> None:
    assert EpochSampler(DATASET, BATCH).samples == SAMPLES
    assert list(EpochSampler(DATASET, BATCH)) == expected(0)


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
def test_with_drop_last_every_global_batch_is_whole(workers: int) -> None:
    samplers = [make(workers, rank, drop_last=True) for rank in range(workers)]
    left_out = set()
    for _ in range(8):
        rows = [list(sampler) for sampler in samplers]
        steps = [sorted(index for part in step for index in part) for step in zip(*rows, strict=True)]
        assert [len(step) for step in steps] == [BATCH] * (SAMPLES // BATCH)
        taken = {index for step in steps for index in step}
        assert len(taken) == 50
        left_out |= set(range(SAMPLES)) - taken
    assert len(left_out) > 3, "others in every epoch"


# --- its position ----------------------------------------------------------------------------------------------------


def train_until(sampler: EpochSampler, loader: Any, steps: int) -> tuple[list[list[int]], dict[str, Any]]:
    """What a loop takes in so many steps, over epochs, and the state saved in it then."""
    taken: list[list[int]] = []
    while True:
        for (batch,) in loader:
            taken.append(batch.tolist())
            if len(taken) == steps:
                return taken, json.loads(json.dumps(sampler.state_dict()))


@pytest.mark.parametrize("at", [1, 4, STEPS, STEPS + 1, 2 * STEPS - 1])
@EVERY_LOADER
def test_a_state_goes_on_where_the_loop_was(how: dict[str, Any], at: int) -> None:
    whole = [batch for number in range(4) for batch in expected(number)]
    sampler = make()
    first, state = train_until(sampler, sampler.counted(loader_of(sampler, how)), at)
    again = make()
    again.load_state_dict(state)
    second, _ = train_until(again, again.counted(loader_of(again, how)), 3 * STEPS - at)
    assert first + second == whole[: 3 * STEPS]


@pytest.mark.parametrize("at", [1, 4, STEPS])
@EVERY_LOADER
def test_going_on_in_mid_epoch_leaves_the_random_state_as_it_was(how: dict[str, Any], at: int) -> None:
    """torch's loader draws a seed when it is iterated over; with it, dropout after a resume would be another one."""
    sampler = make()
    torch.manual_seed(1)
    for step, _ in enumerate(sampler.counted(loader_of(sampler, how)), start=1):
        torch.rand(3)
        if step == at:
            state, random, expected_next = sampler.state_dict(), torch.get_rng_state(), torch.rand(3)
            break
    again = make()
    again.load_state_dict(state)
    torch.set_rng_state(random)
    again.set_epoch(0)
    for _ in again.counted(loader_of(again, how)):
        break
    assert torch.equal(torch.rand(3), expected_next)


def test_a_new_epoch_draws_its_seed() -> None:
    """An epoch after the first must not begin with the random state of before: the loader's seeds would repeat."""
    sampler = make()
    loader = sampler.counted(loader_of(sampler, {}))
    state = torch.get_rng_state()
    for _ in loader:
        break
    assert not torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("at", [1, STEPS - 1, STEPS])
def test_in_one_process_nothing_has_to_be_counted(at: int) -> None:
    whole = [batch for number in range(3) for batch in expected(number)]
    sampler = make()
    first, state = train_until(sampler, loader_of(sampler, {}), at)
    assert state == {"epoch": 0, "batches": at} | {key: state[key] for key in state if key not in ("epoch", "batches")}
    again = make()
    again.load_state_dict(state)
    assert first + train_until(again, loader_of(again, {}), 10)[0] == whole[: at + 10]


@WITH_WORKERS
def test_what_is_drawn_ahead_is_not_taken_for_used(how: dict[str, Any]) -> None:
    sampler = make()
    loader = loader_of(sampler, how)
    batches = iter(loader)
    for _ in range(2):
        next(batches)
    with pytest.raises(UserError, match=r"^EpochSampler has given batches to the loader's worker processes.*counted"):
        sampler.state_dict()
    assert sampler.state_dict(batches=2)["batches"] == 2
    again = make()
    again.load_state_dict(sampler.state_dict(batches=2))
    assert drawn(loader_of(again, how)) == expected(0)[2:]


@WITH_WORKERS
def test_a_loop_with_set_epoch_goes_on_in_the_middle_of_one(how: dict[str, Any]) -> None:
    sampler = make()
    loader = loader_of(sampler, how)
    sampler.set_epoch(3)
    for step, _ in enumerate(sampler.counted(loader), start=1):
        if step == 4:
            break
    state = sampler.state_dict()
    for same in (sampler, make()):  # also the one whose persistent workers have drawn ahead
        same.load_state_dict(state)
        same_loader = loader if same is sampler else loader_of(same, how)
        same.set_epoch(state["epoch"])
        assert drawn(same.counted(same_loader)) == expected(3)[4:]
        same.set_epoch(4)
        assert drawn(same.counted(same_loader)) == expected(4)


def test_an_epoch_that_is_over_is_not_repeated() -> None:
    sampler = make()
    assert len(list(sampler)) == STEPS
    state = sampler.state_dict()
    one, other = make(), make()
    one.load_state_dict(state)
    assert list(one) == expected(1)
    other.load_state_dict(state)
    other.set_epoch(0)
    assert list(other) == [], "nothing of it is left"
    assert list(other) == expected(1)
    other.load_state_dict(state)
    other.set_epoch(7)
    assert list(other) == expected(7)


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
def test_another_number_of_workers_goes_on_with_the_same_global_batches(workers: int) -> None:
    sampler = make(2, 0)
    batches = iter(sampler)
    for _ in range(4):
        next(batches)
    rest = []
    for rank in range(workers):
        again = make(workers, rank)
        again.load_state_dict(sampler.state_dict())
        rest.append(list(again))
    steps = [sorted(index for part in parts for index in part) for parts in zip(*rest, strict=True)]
    assert steps == [sorted(batch) for batch in expected(0)[4:]]


# --- mistakes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        (EpochSampler(54, BATCH), "samples=53, and this one has samples=54: its batches would be other ones"),
        (EpochSampler(SAMPLES, 9), "global_batch=10, and this one has global_batch=9"),
        (EpochSampler(SAMPLES, BATCH, seed=1), "seed=0, and this one has seed=1"),
        (EpochSampler(SAMPLES, BATCH, drop_last=True), "drop_last=False, and this one has drop_last=True"),
        (EpochSampler(SAMPLES, BATCH, 20, 0), "steps=6, and this one has steps=2"),
    ],
)
def test_a_state_of_other_batches_is_refused(other: EpochSampler, sentence: str) -> None:
    with pytest.raises(UserError, match=f"^this state is of an EpochSampler with {sentence}"):
        other.load_state_dict(make().state_dict())


@pytest.mark.parametrize("state", [{}, None, {"epoch": 1}])
def test_what_is_no_state_is_refused(state: Any) -> None:
    with pytest.raises(UserError, match=r"^this is no state of EpochSampler.state_dict\(\)"):
        make().load_state_dict(state)


class Endless(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(int, 1)


class Unknown(Dataset[int]):
    def __len__(self) -> int:
        raise NotImplementedError


class NoRun:
    pass


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"samples": Endless()}, "EpochSampler takes the number of samples, or a data set that has a length"),
        ({"samples": Unknown()}, "EpochSampler takes the number of samples, or a data set that has a length"),
        ({"samples": 5.0}, "EpochSampler takes the number of samples, or a data set that has a length"),
        ({"samples": []}, "the number of samples must be 1 or more, not 0"),
        ({"global_batch": 0}, "global_batch must be 1 or more, not 0"),
        ({"global_batch": 2.5}, "global_batch must be a whole number, not 2.5"),
        ({"seed": -1}, "seed must be 0 or more, not -1"),
        ({"workers": 4}, "EpochSampler needs workers= and rank="),
        ({"workers": 4, "rank": 4}, "there is no rank 4 among 4 workers"),
        ({"run": NoRun()}, r"run= of EpochSampler is what tutti.distribute\(\) returns, not of type NoRun"),
        ({"run": NoRun(), "rank": 1}, "EpochSampler takes run=, or workers= and rank=, not both"),
        ({"drop_last": True, "global_batch": 54}, "with drop_last the global batch must be between 1, the number of"),
    ],
)
def test_mistakes_get_a_sentence(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=f"^{sentence}"):
        EpochSampler(**{"samples": SAMPLES, "global_batch": BATCH, **given})


def test_positions_and_epochs_that_cannot_be() -> None:
    sampler = make()
    with pytest.raises(UserError, match=r"^the epoch must be 0 or more, not -1$"):
        sampler.set_epoch(-1)
    with pytest.raises(UserError, match=r"^an epoch has 6 batches, so 7 of them cannot be used$"):
        sampler.state_dict(batches=7)
    with pytest.raises(UserError, match=r"^counted\(\) got a loader that does not draw from this sampler"):
        list(sampler.counted(DataLoader(DATASET)))


# --- which worker is this --------------------------------------------------------------------------------------------


def test_alone_it_is_the_only_one_and_the_launcher_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (EpochSampler(SAMPLES, BATCH).rank, EpochSampler(SAMPLES, BATCH).workers) == (0, 1)
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert list(EpochSampler(SAMPLES, BATCH)) == expected(0, 3, 2)
    assert list(EpochSampler(SAMPLES, BATCH, rank=1)) == expected(0, 3, 1), "what is given counts"


@pytest.mark.parametrize(("engine", "loader_workers"), [("threads", 0), ("processes", 1)])
def test_launched_workers_know_their_shares(engine: str, loader_workers: int) -> None:
    rows = launch(draw_with_every_sampler, (loader_workers,), options(3, engine=engine), ignore)
    for name in ("launched", "of the run"):
        assert [row[name] for row in rows] == [expected(0, 3, rank) for rank in range(3)]
    assert sorted(index for row in rows for batch in row["dirichlet"] for index in batch) == list(range(SAMPLES))
    torchs = [index for row in rows for batch in row["torch"] for index in batch]
    assert len(set(torchs)) == len(torchs) == 51
