"""Experiments: in which order, what is kept, what is open while, and how long it will still take. No run is real."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fake_clock import FakeClock
from sample_records import make_record

from tutti.errors import RunFailed, UserError
from tutti.lab import experiment
from tutti.lab.experiment import Job, Results, run_jobs
from tutti.lab.record import Record, describe_versions
from tutti.lab.run import Entry, describe_launch, finished
from tutti.launch import LaunchOptions
from tutti.networks.base import Fabric, Network
from tutti.spec import parse
from tutti.train import Plan

PLAN = Plan(task="synthetic(samples=640)", global_batch=64, epochs=None, steps=10)
FAST, SLOW = "hosts(1Gbit, cpu=0.1)", "hosts(10Mbit, cpu=0.1)"


class Laboratory:
    """Everything that happens, in its order; a run takes a second per 64 samples of one worker."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.said: list[str] = []  # how much time was left at every start
        self.clock = FakeClock()
        self.broken = ""  # the name of a job that fails

    # --- the audience ---

    def start(self, name: str, spec: str, index: int, count: int) -> None:
        self.log.append(f"{index}/{count} {name}")
        self.said.append(spec)

    def event(self, event: dict[str, object]) -> None: ...

    def failed(self, message: str) -> None: ...

    def note(self, message: str) -> None:
        self.log.append(message)

    def done(self, record: Record) -> None:
        self.log.append(f"done {record.name}")

    # --- what stands for real runs and networks ---

    def run_once(self, entry: Entry, plan: Plan, options: LaunchOptions, *_: Any) -> Record:
        if entry.name == self.broken:
            raise RunFailed(f"{entry.name} broke")
        workers = entry.launch_options(options).workers
        self.clock.sleep((plan.steps or 0) * plan.global_batch / workers / 64)
        record = make_record(entry.name, workers=workers)
        network = options.fabric.description or {"asked": "loopback"}
        launch = {**describe_launch(entry.launch_options(options)), "network": network}
        changed = {"spec": str(entry.algorithm), "plan": dataclasses.asdict(plan), "launch": launch}
        changed["versions"] = describe_versions()
        return dataclasses.replace(record, **changed)

    def parse(self, text: str, base: type[Any]) -> Any:
        return Nothing(text, self.log) if base is Network else parse(text, base)

    @property
    def runs(self) -> list[str]:
        return [line.partition(" ")[2] for line in self.log if "/" in line.partition(" ")[0]]


@dataclasses.dataclass
class Nothing(Network):
    """Opens and closes, and tells so."""

    text: str
    log: list[str]

    @contextmanager
    def open(self, workers: int) -> Iterator[Fabric]:
        self.log.append(f"open {self.text} for {workers}")
        try:
            yield Fabric(description={"asked": self.text})
        finally:
            self.log.append(f"close {self.text}")

    def check(self, workers: int) -> None:
        if workers > 8:
            raise UserError(f"no room for {workers}")


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> Laboratory:
    lab = Laboratory()
    monkeypatch.setattr(experiment, "run_once", lab.run_once)
    monkeypatch.setattr(experiment, "parse", lab.parse)
    monkeypatch.setattr(experiment, "Clock", lambda: lab.clock)
    return lab


def make_jobs(*names: str, **fields: Any) -> list[Job]:
    return [
        Job(**{"name": name, "spec": "ring", "plan": PLAN, "workers": 2, "network": FAST, **fields}) for name in names
    ]


def change(jobs: list[Job], **fields: Any) -> list[Job]:
    return [dataclasses.replace(job, **fields) for job in jobs]


# --- order and records ------------------------------------------------------------------------------------------------


def test_whole_rounds_and_the_second_one_backwards(lab: Laboratory, tmp_path: Path) -> None:
    results = run_jobs(make_jobs("a", "b", "c"), 3, tmp_path, lab)
    assert lab.runs == ["a", "b", "c", "c", "b", "a", "a", "b", "c"]
    assert [line for line in lab.log if "/" in line.split()[0]][-1] == "9/9 c"
    assert list(results) == ["a", "b", "c"]
    assert {name: len(results[name]) for name in results} == {"a": 3, "b": 3, "c": 3}
    assert len(results.all()) == 9
    written = sorted(path.name for path in tmp_path.iterdir())
    assert written == sorted(f"{name}-{number}.json" for name in "abc" for number in (1, 2, 3))


def test_results_are_the_records_on_disk(lab: Laboratory, tmp_path: Path) -> None:
    results = run_jobs(make_jobs("a", "b"), 2, tmp_path, lab)
    for name in results:
        assert results[name] == [Record.load(tmp_path / f"{name}-{number}.json") for number in (1, 2)]


def test_a_record_is_on_disk_before_the_next_run_begins(
    lab: Laboratory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there: list[list[str]] = []

    def run_once(*args: Any) -> Record:
        there.append(sorted(path.name for path in tmp_path.iterdir()))
        return lab.run_once(*args)

    monkeypatch.setattr(experiment, "run_once", run_once)
    run_jobs(make_jobs("a", "b", "c"), 1, tmp_path, lab)
    assert there == [[], ["a-1.json"], ["a-1.json", "b-1.json"]]


def test_a_job_says_how_it_is_run(lab: Laboratory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Any, ...]] = []

    def run_once(entry: Entry, plan: Plan, options: LaunchOptions, *rest: Any) -> Record:
        seen.append((entry, plan, options, *rest))
        return lab.run_once(entry, plan, options)

    monkeypatch.setattr(experiment, "run_once", run_once)
    plan = dataclasses.replace(PLAN, task="digits")
    run_jobs(make_jobs("a", plan=plan, workers=3, function=print, args=(1, 2)), 1, tmp_path, lab)
    ((entry, got, options, listener, function, args),) = seen
    assert (entry, got) == (Entry.read("ring", "a"), plan)
    assert options.workers == 3
    assert options.fabric.description == {"asked": FAST}
    assert options.preload  # what the task is slow to import
    assert listener == lab.event
    assert (function, args) == (print, (1, 2))


# --- what is kept -----------------------------------------------------------------------------------------------------


def test_nothing_that_is_finished_runs_again(lab: Laboratory, tmp_path: Path) -> None:
    first = run_jobs(make_jobs("a", "b"), 2, tmp_path, lab)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    lab.log.clear()
    again = run_jobs(make_jobs("a", "b"), 2, tmp_path, lab)
    assert lab.log == ["done a", "done b", "done b", "done a"]  # no run, no network
    assert again.all() == first.all()
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before


def test_it_goes_on_where_it_was_stopped(lab: Laboratory, tmp_path: Path) -> None:
    lab.broken = "c"
    with pytest.raises(RunFailed, match="c broke"):
        run_jobs(make_jobs("a", "b", "c"), 2, tmp_path, lab)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a-1.json", "b-1.json"]
    lab.broken = ""
    lab.log.clear()
    run_jobs(make_jobs("a", "b", "c"), 2, tmp_path, lab)
    assert lab.runs == ["c", "c", "b", "a"]


@pytest.mark.parametrize(
    "fields",
    [
        {"spec": "ddp"},
        {"plan": dataclasses.replace(PLAN, lr=0.5)},
        {"network": SLOW},
        {"network": "loopback"},
        {"workers": 4},
        {"name": "b"},
        {"function": print},
        {"args": (1,)},
        {"engine": "threads", "network": "loopback"},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_what_has_changed_runs_again(lab: Laboratory, tmp_path: Path, fields: dict[str, Any]) -> None:
    run_jobs(make_jobs("a"), 1, tmp_path, lab)
    lab.log.clear()
    (job,) = change(make_jobs("a"), **fields)
    (record,) = run_jobs([job], 1, tmp_path, lab).all()
    assert lab.runs == [job.name]
    assert record == Record.load(tmp_path / ("b-1.json" if job.name == "b" else "a-1-other-2.json"))


@pytest.mark.parametrize(
    ("launch", "versions", "said"),
    [
        ({}, {"torch": "2.12.0"}, "is of torch 2.12.0"),
        ({}, {"tutti": "0.0.9"}, "is of tutti 0.0.9"),
        ({"wire": "torch"}, {}, "is of another wire (torch)"),
        ({"timeout": 5.0}, {}, "is of another deadline (5 s)"),
        ({"threads": 99}, {}, "is of another number of threads (99)"),
        ({"tls": True}, {}, "is with TLS"),
        ({"wire": None}, {}, "does not say its wire"),
        ({}, {"python": None}, "does not say its version of python"),
    ],
)
def test_what_was_made_under_other_conditions_runs_again_and_says_why(
    lab: Laboratory, tmp_path: Path, launch: dict[str, Any], versions: dict[str, Any], said: str
) -> None:
    (record,) = run_jobs(make_jobs("a"), 1, tmp_path, lab).all()
    old = {"launch": {**record.launch, **launch}, "versions": {**record.versions, **versions}}
    old = {key: {k: v for k, v in each.items() if v is not None} for key, each in old.items()}
    dataclasses.replace(record, **old).save(tmp_path / "a-1.json")
    lab.log.clear()
    run_jobs(make_jobs("a"), 1, tmp_path, lab)
    assert lab.runs == ["a"]
    assert f"a-1.json {said}: run again" in lab.log
    assert Record.load(tmp_path / "a-1.json") == record, "in the place of the other"
    lab.log.clear()
    run_jobs(make_jobs("a"), 1, tmp_path, lab)
    assert lab.log == ["done a"]


def test_a_record_that_says_nothing_of_tls_and_nodes_had_neither(lab: Laboratory, tmp_path: Path) -> None:
    (record,) = run_jobs(make_jobs("a"), 1, tmp_path, lab).all()
    launch = {key: value for key, value in record.launch.items() if key not in ("tls", "nodes")}
    dataclasses.replace(record, launch=launch).save(tmp_path / "a-1.json")
    lab.log.clear()
    run_jobs(make_jobs("a"), 1, tmp_path, lab)
    assert lab.log == ["done a"]


def test_what_was_made_with_other_options_is_there_afterwards(lab: Laboratory, tmp_path: Path) -> None:
    """However often one changes one's mind; a fresh start is one for the same options only."""
    jobs = [change(make_jobs("a"), plan=dataclasses.replace(PLAN, lr=lr)) for lr in (0.5, 0.25, 0.5, 0.25, 0.5)]
    for each in jobs:
        run_jobs(each, 1, tmp_path, lab)
    assert lab.runs == ["a", "a"]
    run_jobs(jobs[0], 1, tmp_path, lab, fresh=True)
    run_jobs(jobs[1], 1, tmp_path, lab)
    assert lab.runs == ["a", "a", "a"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a-1-other-2.json", "a-1.json"]


@pytest.mark.parametrize(
    "fields",
    [{"spec": "gradient-average(all-reduce(ring), overlap=false)"}, {"network": "hosts(rate=1000Mbit, cpu=0.10)"}],
    ids=["spec", "network"],
)
def test_the_same_in_other_words_is_kept(lab: Laboratory, tmp_path: Path, fields: dict[str, Any]) -> None:
    run_jobs(make_jobs("a"), 1, tmp_path, lab)
    lab.log.clear()
    run_jobs(change(make_jobs("a"), **fields), 1, tmp_path, lab)
    assert lab.log == ["done a"]


def test_a_program_of_its_own_is_in_the_record_and_kept_with_its_arguments(lab: Laboratory, tmp_path: Path) -> None:
    jobs = make_jobs("a", function=print, args=("x", 1))
    (record,) = run_jobs(jobs, 1, tmp_path, lab).all()
    assert record.launch["program"] == "builtins.print('x', 1)"
    lab.log.clear()
    run_jobs(jobs, 1, tmp_path, lab)
    assert lab.log == ["done a"]
    run_jobs(change(jobs, args=("x", 2)), 1, tmp_path, lab)
    assert lab.runs == ["a"]


def test_workers_that_were_threads_are_kept_as_such(lab: Laboratory, tmp_path: Path) -> None:
    jobs = make_jobs("a", engine="threads", network="loopback")
    (record,) = run_jobs(jobs, 1, tmp_path, lab).all()
    assert record.launch["engine"] == "threads"
    lab.log.clear()
    run_jobs(jobs, 1, tmp_path, lab)
    assert lab.log == ["done a"]
    run_jobs(change(jobs, engine="processes"), 1, tmp_path, lab)
    assert lab.runs == ["a"]


def test_threads_on_hosts_are_refused_before_the_first_run(
    lab: Laboratory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Nothing, "hosts", True)
    with pytest.raises(UserError, match="needs workers that are processes"):
        run_jobs([*make_jobs("a"), *make_jobs("b", engine="threads")], 1, tmp_path, lab)
    assert lab.log == []


def test_one_worker_alone_is_kept_however_many_were_asked_for(lab: Laboratory, tmp_path: Path) -> None:
    (record,) = run_jobs(make_jobs("a", spec="single", workers=4), 1, tmp_path, lab).all()
    assert record.workers == 1
    lab.log.clear()
    run_jobs(make_jobs("a", spec="single", workers=4), 1, tmp_path, lab)
    assert lab.log == ["done a"]


def test_a_record_from_before_there_were_networks_counts_as_loopback(tmp_path: Path) -> None:
    path, plan = tmp_path / "a-1.json", dataclasses.asdict(PLAN)
    record = dataclasses.replace(make_record("ring"), plan=plan, launch={"engine": "processes"})
    record.save(path)
    assert finished(path, "ring", PLAN, record.workers, "loopback") == record
    assert finished(path, "ring", PLAN, record.workers, FAST) is None
    assert finished(path, "ring", PLAN, record.workers + 1, "loopback") is None


def test_a_record_from_before_messages_could_be_lost_counts_as_lossless(tmp_path: Path) -> None:
    path, plan = tmp_path / "a-1.json", dataclasses.asdict(PLAN)
    del plan["loss"]
    record = dataclasses.replace(make_record("ring"), plan=plan)
    record.save(path)
    assert finished(path, "ring", PLAN, record.workers, "loopback") == record
    assert finished(path, "ring", dataclasses.replace(PLAN, loss=0.1), record.workers, "loopback") is None


def test_a_record_without_a_newer_field_of_the_plan_counts_as_made_with_its_default(tmp_path: Path) -> None:
    path, plan = tmp_path / "a-1.json", dataclasses.asdict(PLAN)
    del plan["samples"]
    record = dataclasses.replace(make_record("ring"), plan=plan)
    record.save(path)
    assert finished(path, "ring", PLAN, record.workers, "loopback") == record
    assert finished(path, "ring", dataclasses.replace(PLAN, samples=5), record.workers, "loopback") is None


def test_a_fresh_start_removes_the_records_and_nothing_else(lab: Laboratory, tmp_path: Path) -> None:
    jobs = make_jobs("a", "b")
    run_jobs(jobs, 2, tmp_path, lab)
    for name in ("package.json", "a.json", "report.html"):
        (tmp_path / name).write_text("mine")
    lab.log.clear()
    lab.broken = "a"
    with pytest.raises(RunFailed):
        run_jobs(jobs, 2, tmp_path, lab, fresh=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "package.json", "report.html"]


def test_a_fresh_start_that_cannot_be_made_removes_nothing(lab: Laboratory, tmp_path: Path) -> None:
    run_jobs(make_jobs("a"), 1, tmp_path, lab)
    before = sorted(tmp_path.iterdir())
    impossible = make_jobs("b", spec="gradient-average(all-reduce(ring, median))")
    with pytest.raises(UserError, match="needs whole contributions"):
        run_jobs([*make_jobs("a"), *impossible], 1, tmp_path, lab, fresh=True)
    assert sorted(tmp_path.iterdir()) == before


# --- what follows -----------------------------------------------------------------------------------------------------


class Ladder:
    """Wants one job more after each, up to `last`."""

    def __init__(self, last: str) -> None:
        self.last = last

    def more(self, results: Results) -> list[Job]:
        name = max(results)
        return [] if name == self.last else make_jobs(chr(ord(name) + 1))

    def ahead(self, results: Results, jobs: list[Job]) -> list[Job]:
        return make_jobs(*(chr(code) for code in range(ord(jobs[-1].name) + 1, ord(self.last) + 1)))


def test_what_follows_from_the_records_is_run_too(lab: Laboratory, tmp_path: Path) -> None:
    results = run_jobs(make_jobs("a", "b"), 1, tmp_path, lab, follows=Ladder("d"))
    assert [line for line in lab.log if "/" in line.split()[0]] == ["1/4 a", "2/4 b", "3/4 c", "4/4 d"]
    assert list(results) == ["a", "b", "c", "d"]
    assert lab.said == ["", "about 15.0 s left", "about 10.0 s left", "about 5.00 s left"]


def test_what_follows_is_kept_and_gone_on_with(lab: Laboratory, tmp_path: Path) -> None:
    lab.broken = "c"
    with pytest.raises(RunFailed):
        run_jobs(make_jobs("a"), 1, tmp_path, lab, follows=Ladder("d"))
    lab.broken = ""
    lab.log.clear()
    results = run_jobs(make_jobs("a"), 1, tmp_path, lab, follows=Ladder("d"))
    assert lab.runs == ["c", "d"]
    assert "d" in results
    assert "e" not in results


# --- networks ---------------------------------------------------------------------------------------------------------


def test_a_network_is_opened_once_for_the_most_workers_and_closed_at_the_end(lab: Laboratory, tmp_path: Path) -> None:
    jobs = [*make_jobs("a"), *make_jobs("b", network=SLOW), *make_jobs("c", workers=4), *make_jobs("d", workers=3)]
    run_jobs(jobs, 2, tmp_path, lab)
    assert [line for line in lab.log if line.startswith("open")] == [f"open {FAST} for 4", f"open {SLOW} for 2"]
    assert lab.log[-2:] == [f"close {SLOW}", f"close {FAST}"]
    assert lab.log.index(f"open {SLOW} for 2") == lab.log.index("2/8 b") + 1  # when it is needed, not before


def test_networks_are_closed_after_an_error(lab: Laboratory, tmp_path: Path) -> None:
    lab.broken = "b"
    with pytest.raises(RunFailed):
        run_jobs([*make_jobs("a"), *make_jobs("b", network=SLOW)], 1, tmp_path, lab)
    assert lab.log[-2:] == [f"close {SLOW}", f"close {FAST}"]


def test_only_a_network_that_is_needed_is_opened(lab: Laboratory, tmp_path: Path) -> None:
    run_jobs(make_jobs("a"), 1, tmp_path, lab)
    lab.log.clear()
    run_jobs([*make_jobs("a"), *make_jobs("b", network=SLOW)], 1, tmp_path, lab)
    assert [line for line in lab.log if line.startswith("open")] == [f"open {SLOW} for 2"]


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [({"workers": 9}, "no room for 9"), ({"spec": "gradient-average(all-reduce(ring, no-such))"}, "no-such")],
)
def test_what_cannot_work_is_refused_before_the_first_run(
    lab: Laboratory, tmp_path: Path, fields: dict[str, Any], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Nothing, "hosts", True)
    with pytest.raises(UserError, match=sentence):
        run_jobs([*make_jobs("a"), *make_jobs("b", **fields)], 1, tmp_path, lab)
    assert lab.log == []


def test_on_loopback_every_worker_computes_with_one_thread(lab: Laboratory, tmp_path: Path) -> None:
    results = run_jobs([*make_jobs("a", network="loopback"), *make_jobs("b")], 1, tmp_path, lab)
    assert results["a"][0].launch["threads"] == 1
    assert results["b"][0].launch["threads"] == LaunchOptions(2).threads_each()  # the fabric says it, or the machine


# --- the time that is left --------------------------------------------------------------------------------------------


def test_the_time_left_is_told_from_the_second_run_on(lab: Laboratory, tmp_path: Path) -> None:
    """Ten steps of 32 samples per worker are 5 s, and so is every other job but c, which takes twice as long."""
    long = dataclasses.replace(PLAN, steps=20)
    run_jobs([*make_jobs("a", "b"), *make_jobs("c", plan=long), *make_jobs("d")], 1, tmp_path, lab)
    assert lab.said == ["", "about 20.0 s left", "about 15.0 s left", "about 5.00 s left"]


def test_what_is_kept_takes_no_time(lab: Laboratory, tmp_path: Path) -> None:
    jobs = make_jobs("a", "b", "c", "d")
    run_jobs(jobs, 1, tmp_path, lab)
    for name in ("b", "d"):
        (tmp_path / f"{name}-1.json").unlink()
    lab.said.clear()
    run_jobs(jobs, 1, tmp_path, lab)
    assert lab.said == ["", "about 5.00 s left"]


def seconds_of(text: str) -> float:
    (found,) = re.findall(r"about ([\d.]+) s left", text)
    return float(found)


def test_the_time_left_adds_up_for_jobs_of_every_length(lab: Laboratory, tmp_path: Path) -> None:
    jobs = [*make_jobs("a", workers=1), *make_jobs("b", workers=4), *make_jobs("c", spec="single", workers=4)]
    begun = lab.clock.now()
    run_jobs(jobs, 2, tmp_path, lab)
    total = lab.clock.now() - begun
    done = [10.0, 12.5, 22.5, 32.5, 35.0]
    assert [seconds_of(text) for text in lab.said[1:]] == pytest.approx([total - each for each in done], rel=0.01)


@pytest.mark.parametrize(
    ("fields", "samples"),
    [
        ({}, 10 * 64 / 2),
        ({"workers": 1}, 640),
        ({"spec": "single", "workers": 4}, 640),
        ({"plan": Plan(task="synthetic(samples=640)", epochs=3)}, 3 * 640 / 2),
        ({"plan": Plan(task="mnist", epochs=2)}, 2 * 60_000 / 2),
        ({"plan": Plan(task="mnist(samples=9600)", epochs=2)}, 2 * 9600 / 2),
        ({"plan": Plan(task="mnist", epochs=2, samples=100)}, 2 * 100 / 2),
        ({"plan": Plan(task="mnist(samples=50)", epochs=2, samples=100)}, 2 * 50 / 2),
    ],
)
def test_the_cost_is_the_samples_of_one_worker(fields: dict[str, Any], samples: float) -> None:
    (job,) = make_jobs("a", **fields)
    assert job.cost == samples


def test_the_cost_grows_with_the_epochs_where_nobody_knows_their_length() -> None:
    short, long = (make_jobs("a", plan=Plan(task="digits", epochs=epochs))[0].cost for epochs in (2, 12))
    assert 0 < 6 * short == long


def test_a_record_from_before_there_were_partitions_counts_as_iid(tmp_path: Path) -> None:
    path, plan = tmp_path / "a-1.json", dataclasses.asdict(PLAN)
    del plan["partition"]
    record = dataclasses.replace(make_record("ring"), plan=plan)
    record.save(path)
    assert finished(path, "ring", PLAN, record.workers, "loopback") == record
    other = dataclasses.replace(PLAN, partition="dirichlet(0.1)")
    assert finished(path, "ring", other, record.workers, "loopback") is None
