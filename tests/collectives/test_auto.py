"""Which route is taken for which length, and that all workers take the same one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from workers import on_tcp, on_threads

from tutti.collectives import auto
from tutti.collectives.auto import CANDIDATES, Auto
from tutti.collectives.base import Collective
from tutti.comm.base import Comm
from tutti.spec import parse


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "tutti" / "routes.json"


def prepare(comm: Comm) -> list[str]:
    """The route for each of a few lengths."""
    route = Auto()
    route.prepare(comm)
    return [str(route.choose(nbytes)) for nbytes in (0, 1000, 5000, 10**9)]


def test_until_it_has_measured() -> None:
    assert [str(Auto().choose(nbytes)) for nbytes in (0, 2**15, 2**15 + 4)] == ["butterfly", "butterfly", "ring"]


def test_it_tells_what_it_chose_as_ranges() -> None:
    route = Auto()
    assert route.choices() == {}
    chosen = {1024: "butterfly", 4096: "butterfly", 16384: "star", 65536: "ring", 262144: "ring"}
    route._routes = [(nbytes, parse(name, Collective)) for nbytes, name in chosen.items()]
    assert route.choices() == {"route": "butterfly up to 8KiB, star up to 32KiB, ring above"}
    assert [str(route.choose(nbytes)) for nbytes in (8191, 8193, 32767, 32769)] == ["butterfly", "star", "star", "ring"]
    route._routes = route._routes[-2:]
    assert route.choices() == {"route": "ring"}


def test_threads_do_not_measure(cache: Path) -> None:
    assert on_threads(3, prepare) == [["butterfly", "butterfly", "butterfly", "ring"]] * 3
    assert not cache.exists()


def test_the_least_time_of_all_workers_wins_everywhere(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Worker 0 finds the star fastest, the others the ring; together the ring wins at 4 KiB, the butterfly at 1 KiB."""

    def take_turns(comm: Comm, routes: list[Collective], nbytes: int, turns: int) -> torch.Tensor:
        fastest = "butterfly" if nbytes == 1024 else "star" if comm.rank == 0 else "ring"
        mine = torch.tensor([1e-3 if str(route) == fastest else 9e-3 for route in routes], dtype=torch.float64)
        comm.all_reduce(mine)
        return mine.repeat(turns, 1)

    monkeypatch.setattr(auto, "_take_turns", take_turns)
    monkeypatch.setattr(auto, "SIZES", (1024, 4096))
    assert on_tcp(3, prepare) == [["butterfly", "butterfly", "ring", "ring"]] * 3
    [(place, table)] = json.loads(cache.read_text()).items()
    assert table == {"1024": "butterfly", "4096": "ring"}
    assert place.startswith("tcp: 3 on ")


def test_what_is_in_the_cache_is_not_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "SIZES", (1024,))
    first = on_tcp(2, prepare)
    monkeypatch.setattr(auto, "_time", None)
    assert on_tcp(2, prepare) == first


def test_another_number_of_workers_is_measured_anew(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "SIZES", (1024,))
    on_tcp(2, prepare)
    on_tcp(3, prepare)
    assert len(json.loads(cache.read_text())) == 2


@pytest.mark.parametrize("text", ["", "[]", "{", '{"tcp": 3}'])
def test_a_broken_cache_is_no_cache(cache: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "SIZES", (1024,))
    cache.parent.mkdir()
    cache.write_text(text)
    assert len(set(map(tuple, on_tcp(2, prepare)))) == 1


def test_emulated_hosts_leave_no_trace(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "SIZES", (1024,))

    def work(comm: Comm) -> list[str]:
        comm.interface = "eth0"
        return prepare(comm)

    on_tcp(2, work)
    assert not cache.exists()


def test_measuring_ends_when_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """All know how long the slowest worker took, and stop together; long buffers do not get the route of short ones."""
    monkeypatch.setattr(auto, "_SECONDS", 0.0)

    def work(comm: Comm) -> tuple[int, str]:
        route = Auto()
        route.prepare(comm)
        return len(route._routes), str(route.choose(2**25))

    assert on_tcp(2, work) == [(2, "ring")] * 2


def test_a_measurement_that_was_cut_off_goes_on_in_the_next_run(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is measured again replaces what was known, what there is no time for stays, and all known is complete."""
    answers = iter(["star", "star", "direct", "direct", "butterfly"])

    monkeypatch.setattr(auto, "_time", lambda *_: ({next(answers): 1.0}, 1.0))
    monkeypatch.setattr(auto, "SIZES", (1024, 4096, 16384))
    monkeypatch.setattr(auto, "_EACH", 1.0)

    def prepare_within(seconds: float) -> dict[str, str]:
        monkeypatch.setattr(auto, "_SECONDS", seconds)
        on_tcp(1, lambda comm: auto._measure(comm, "here", auto._recall(comm, "here")[0]))
        return dict(json.loads(cache.read_text())["here"])

    assert prepare_within(1.5) == {"incomplete": "measured again by the next run", "1024": "star", "4096": "star"}
    assert prepare_within(0.5) == {"incomplete": "measured again by the next run", "1024": "direct", "4096": "star"}
    monkeypatch.setattr(auto, "SIZES", (1024, 4096))
    assert prepare_within(0.5) == {"1024": "direct", "4096": "star"}
    assert on_tcp(1, lambda comm: auto._recall(comm, "here")) == [({1024: "direct", 4096: "star"}, True)]


def test_an_older_table_that_was_cut_off_is_not_believed(cache: Path) -> None:
    cache.parent.mkdir()
    cache.write_text(json.dumps({"here": {"1024": "butterfly", "1048576": "ring"}}))
    assert on_tcp(2, lambda comm: auto._recall(comm, "here")) == [({}, False)] * 2


def test_a_moment_in_which_the_machine_stood_still_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [[1e-3], [3.0], [1e-3], [1e-3]]
    monkeypatch.setattr(auto, "_take_turns", lambda *_: torch.tensor(rows, dtype=torch.float64))
    seconds, took = auto._time(None, {"ring": parse("ring", Collective)}, 1024)  # type: ignore[arg-type]
    assert seconds == {"ring": 1e-3}
    assert took == pytest.approx((2 + 4 + 4) * 1e-3)


def test_what_it_measures_is_the_same_everywhere() -> None:
    """Every candidate takes a time, that of the slowest worker."""

    def work(comm: Comm) -> list[list[float]]:
        return auto._take_turns(comm, [parse(name, Collective) for name in CANDIDATES], 4096, turns=3).tolist()

    first, second = on_tcp(2, work)
    assert first == second
    assert [len(turn) for turn in first] == [len(CANDIDATES)] * 3
    assert all(0 < seconds < 5 for turn in first for seconds in turn)


def test_time_goes_to_those_that_are_hard_to_tell_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 1, 1.2 and 1.8 ms the third leaves at half-time; the others have as many turns as fit."""
    asked: list[tuple[list[str], int]] = []
    pace = {"ring": 1e-3, "star": 1.2e-3, "direct": 1.8e-3}

    def take_turns(_comm: Comm, routes: list[Collective], _nbytes: int, turns: int) -> torch.Tensor:
        asked.append(([str(route) for route in routes], turns))
        return torch.tensor([[pace[str(route)] for route in routes]] * turns, dtype=torch.float64)

    monkeypatch.setattr(auto, "_take_turns", take_turns)
    monkeypatch.setattr(auto, "_EACH", 22.1e-3)
    routes = {name: parse(name, Collective) for name in pace}
    seconds, spent = auto._time(None, routes, 1024)  # type: ignore[arg-type]  # nobody is asked anything
    assert seconds == {"ring": 1e-3, "star": 1.2e-3}
    assert asked == [(["ring", "star", "direct"], 2), (["ring", "star", "direct"], 5), (["ring", "star"], 10)]
    assert spent == pytest.approx((2 + 5) * 4e-3 + 10 * 2.2e-3)


@pytest.mark.parametrize("table", [3, ["ring"], {"1024": ["ring"]}, {"many": "ring"}, {"-1": "ring", "1024": {}}])
def test_a_damaged_table_is_measured_again(table: object, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "SIZES", (1024,))
    on_tcp(2, prepare)
    whole = json.loads(cache.read_text())
    cache.write_text(json.dumps(dict.fromkeys(whole, table)))
    on_tcp(2, prepare)
    assert json.loads(cache.read_text()).keys() == whole.keys()
    assert [list(each) for each in json.loads(cache.read_text()).values()] == [["1024"]]
