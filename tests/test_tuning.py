"""Which size is tried when, what is timed, and that the fastest one wins."""

from __future__ import annotations

import pytest

from tutti.tuning import Tuner, find_sizes

WARM_UP, ROUNDS, SETTLE, TIMED = 3, 2, 1, 3


def run(tuner: Tuner, times: list[list[float]] | None = None) -> list[int]:
    """Note steps until it is finished, each as long as `times` says for its candidate in turn; what was tried when."""
    tried: list[int] = []
    while not tuner.finished:
        candidate = tuner.current
        turn = tried.count(candidate)
        tuner.note(times[candidate][turn % len(times[candidate])] if times else 1.0)
        tried.append(candidate)
    return tried


@pytest.mark.parametrize("candidates", [1, 2, 4])
def test_all_candidates_take_turns_after_a_warm_up_with_the_first(candidates: int) -> None:
    trial = SETTLE + TIMED
    rounds = [candidate for candidate in range(candidates) for _ in range(trial)] * ROUNDS
    assert run(Tuner(range(candidates))) == [0] * WARM_UP + rounds


def test_it_is_finished_behind_the_last_timed_step_and_not_before() -> None:
    tuner, steps = Tuner([8, 4]), WARM_UP + ROUNDS * 2 * (SETTLE + TIMED)
    for _ in range(steps):
        assert not tuner.finished
        tuner.note(1.0)
    assert tuner.finished


def test_warm_up_and_the_first_step_of_a_trial_are_not_timed() -> None:
    tuner = Tuner([8, 4])
    for step in range(WARM_UP + ROUNDS * 2 * (SETTLE + TIMED)):
        settling = step < WARM_UP or (step - WARM_UP) % (SETTLE + TIMED) < SETTLE
        tuner.note(1e9 if settling else 1.0)
    assert tuner.seconds() == [1.0, 1.0]


def test_the_median_is_not_moved_by_a_few_slow_steps() -> None:
    tuner = Tuner([8, 4])
    trial, other = [2.0, 2.0, 50.0, 2.0], [2.0, 50.0, 2.0, 2.0]
    run(tuner, [[2.0] * WARM_UP + trial + other, [3.0]])
    assert tuner.seconds() == [2.0, 3.0]


@pytest.mark.parametrize("fastest", range(4))
def test_the_fastest_wins(fastest: int) -> None:
    tuner = Tuner([64, 32, 16, 8])
    run(tuner, [[1.0 if candidate == fastest else 1.1] for candidate in range(4)])
    seconds = tuner.seconds()
    assert tuner.candidates[seconds.index(min(seconds))] == [64, 32, 16, 8][fastest]


def test_sizes_go_down_by_quarters_to_the_least() -> None:
    assert find_sizes(2**26) == [2**26, 2**24, 2**22, 2**20]
    assert find_sizes(2**22) == [2**22, 2**20, 2**18, 2**16]
    assert find_sizes(2**22 - 4) == [2**22 - 4, 2**20 - 1, 2**18 - 1]
    assert find_sizes(100, least=10, steps=2) == [100, 25]


@pytest.mark.parametrize("total", [0, 1, 1000])
def test_there_is_always_one_size_and_it_is_never_0(total: int) -> None:
    """A bucket of 0 bytes would mean one bucket per tensor."""
    assert find_sizes(total) == [max(1, total)]
