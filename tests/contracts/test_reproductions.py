"""The contract of every reproduction found in the folder, told from records by hand: nothing is run."""

from __future__ import annotations

import pickle
import re
from typing import get_args

import pytest
import told as telling
from sample_results import make_results
from told import FILE_NAME, Told

from tutti.lab.experiment import Job
from tutti.lab.reproductions.base import Reproduction, Verdict, find, names
from tutti.lab.run import Entry, check_all
from tutti.launch import LaunchOptions
from tutti.models.base import Model
from tutti.networks.base import Network
from tutti.spec import member, parse
from tutti.spec import names as members
from tutti.tasks.base import Task, find_task

CORES = 2


@pytest.fixture(scope="module")
def all_told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Told]:
    found = {name: find(name) for name in names()}
    results = {name: make_results(each.jobs(False), each.repeats) for name, each in found.items()}
    return {name: telling.tell(name, found[name], results[name], tmp_path_factory.mktemp(name)) for name in found}


@pytest.fixture(params=names())
def told(request: pytest.FixtureRequest, all_told: dict[str, Told]) -> Told:
    return all_told[request.param]


@pytest.fixture(scope="module", params=names())
def reproduction(request: pytest.FixtureRequest) -> Reproduction:
    return find(request.param)


def every_job(reproduction: Reproduction) -> list[Job]:
    return [*reproduction.jobs(True), *reproduction.jobs(False)]


# --- what is to be done -----------------------------------------------------------------------------------------------


def test_there_are_some() -> None:
    assert {"vgg-cifar", "aggregation-mnist"} <= set(names())
    assert "base" not in names()


def test_it_says_what_it_is(reproduction: Reproduction) -> None:
    assert 10 < len(reproduction.title) < 80
    assert re.match("an? ", reproduction.document), "goes on a sentence: What a report on ... published"
    assert not reproduction.document.endswith(".")
    assert reproduction.repeats >= 1


def test_its_data_can_be_fetched_and_is_all_it_needs(reproduction: Reproduction) -> None:
    for name in reproduction.data:
        assert name in members("tasks")
        assert vars(member(Task, name))["data_set"].name == name
    tasks = [find_task(job.plan.task) for job in every_job(reproduction)]
    assert {task.name for task in tasks if hasattr(task, "data_set")} == set(reproduction.data)


def test_every_job_has_a_name_of_its_own_that_a_file_can_have(reproduction: Reproduction) -> None:
    for quick in (True, False):
        jobs = [job.name for job in reproduction.jobs(quick)]
        assert jobs
        assert len({name.lower() for name in jobs}) == len(jobs)
        for name in jobs:
            assert FILE_NAME.fullmatch(name), name


def test_specs_tasks_models_and_networks_can_be_read_and_go_together(
    reproduction: Reproduction, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the data is on this machine is another question."""
    monkeypatch.setattr("tutti.networks.hosts.count_cores", lambda: CORES)
    monkeypatch.setattr("tutti.tasks.base.find", lambda *_: {})
    for job in every_job(reproduction):
        parse(job.plan.model or find_task(job.plan.task).default_model, Model)
        network = parse(job.network, Network)
        check_all([Entry.read(job.spec, job.name)], job.plan, LaunchOptions(job.workers), network)


def test_its_networks_fit_on_two_cores(reproduction: Reproduction, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network is opened once, with the most workers that any job has on it."""
    monkeypatch.setattr("tutti.networks.hosts.count_cores", lambda: CORES)
    for quick in (True, False):
        jobs = reproduction.jobs(quick)
        for job in jobs:
            parse(job.network, Network).check(max(each.workers for each in jobs if each.network == job.network))


def test_a_slow_host_takes_part_in_every_job_on_its_network(reproduction: Reproduction) -> None:
    """It is the last one, so all jobs there must have as many workers."""
    workers: dict[str, set[int]] = {}
    for job in every_job(reproduction):
        if "slow-" in job.network:
            workers.setdefault(job.network, set()).add(job.takes)
    assert all(len(counts) == 1 for counts in workers.values()), workers


def test_what_a_job_runs_can_travel_to_the_workers(reproduction: Reproduction) -> None:
    for job in every_job(reproduction):
        carried = (job.function, job.plan, job.args)
        assert pickle.loads(pickle.dumps(carried)) == carried
        assert " at 0x" not in job.program, "the record could not be found again"


def test_jobs_of_one_name_are_equal_however_often_they_are_asked_for(reproduction: Reproduction) -> None:
    for quick in (True, False):
        assert reproduction.jobs(quick) == reproduction.jobs(quick)


def test_the_quick_version_is_less_work(reproduction: Reproduction) -> None:
    quick, full = (sum(job.cost for job in reproduction.jobs(quick)) for quick in (True, False))
    assert 0 < quick < full


# --- what is told -----------------------------------------------------------------------------------------------------


def test_the_quick_version_tells_of_the_same_claims(told: Told) -> None:
    reproduction = find(told.name)
    story = reproduction.tell(make_results(reproduction.jobs(True)))
    assert [claim.text for claim in story.claims] == [claim.text for claim in told.story.claims]
    assert [section.title for section in story.sections] == [section.title for section in told.story.sections]


def test_the_same_records_tell_the_same(told: Told) -> None:
    reproduction = find(told.name)
    again = reproduction.tell(make_results(reproduction.jobs(False), reproduction.repeats))
    assert (again.finding, again.claims) == (told.story.finding, told.story.claims)


def test_the_finding_is_one_sentence_with_a_figure(told: Told) -> None:
    telling.check_finding(told)


def test_every_claim_has_both_figures_a_verdict_and_a_reason(told: Told) -> None:
    telling.check_claims(told, get_args(Verdict))


def test_tables_have_a_caption_and_a_cell_for_every_column(told: Told) -> None:
    telling.check_tables(told)


@pytest.mark.parametrize("narrow", [False, True], ids=["wide", "narrow"])
def test_charts_show_all_there_is_and_no_text_is_cut_off_or_overlaps(told: Told, narrow: bool) -> None:
    telling.check_charts(told, narrow)


def test_the_report_is_sound_and_holds_everything(told: Told) -> None:
    telling.check_report(told)


def test_every_chart_of_the_page_is_a_picture_beside_it(told: Told) -> None:
    telling.check_pictures(told)


def test_every_row_of_the_page_has_as_many_columns_as_its_table(told: Told) -> None:
    telling.check_rows(told)


def test_the_page_has_its_sections_and_nothing_unfinished(told: Told) -> None:
    telling.check_page(told)
    assert find(told.name).document in told.page
