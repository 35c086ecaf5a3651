"""The contract of every study found in the folder, told from records by hand: nothing is run."""

from __future__ import annotations

import dataclasses
import json
import re
from functools import cache
from typing import get_args

import pytest
import told as telling
from sample_results import play
from told import FILE_NAME, SENTENCE, Told

from tutti.lab.experiment import Job, Results
from tutti.lab.run import Entry, check_all
from tutti.lab.studies.base import Study, Verdict, find, names, options_of
from tutti.launch import LaunchOptions
from tutti.networks.base import Network
from tutti.spec import parse

SEEDS = 2  # a spread, and not more than that


def make(name: str, quick: bool = False) -> Study:
    """With its defaults."""
    return find(name)(**{each.name: each.quick if quick else each.usual for each in options_of(find(name))})


@cache
def played(study: Study) -> tuple[list[Job], Results]:
    """Made once, as there may be hundreds of records."""
    return play(study)


@pytest.fixture(scope="module", params=names())
def study(request: pytest.FixtureRequest) -> Study:
    return make(request.param)


@pytest.fixture(scope="module", params=names())
def told(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Told:
    study = dataclasses.replace(make(request.param), seeds=SEEDS)
    return telling.tell(request.param, study, played(study)[1], tmp_path_factory.mktemp("study"))


# --- what is to be done -----------------------------------------------------------------------------------------------


def test_there_are_some() -> None:
    assert {"aggregation", "sweep", "heterogeneity", "topology", "drops"} <= set(names())
    assert "base" not in names()


def test_it_says_what_it_is(study: Study) -> None:
    assert 10 < len(study.title) < 80
    assert SENTENCE.fullmatch(study.question)


def test_every_option_has_a_text_and_a_default_that_can_be_typed(study: Study) -> None:
    for option in options_of(type(study)):
        assert len(option.text) > 5
        for value in (option.usual, option.quick):
            if value not in ((), False):
                assert option.read(option.write(value)) == value


def test_what_is_different_when_quick_is_an_option(study: Study) -> None:
    assert set(study.quick) <= {option.name for option in options_of(type(study))}


def test_every_job_has_a_name_of_its_own_that_a_file_can_have(study: Study) -> None:
    jobs = [job.name for job in played(study)[0]]
    assert jobs
    assert len({name.lower() for name in jobs}) == len(jobs)
    for name in jobs:
        assert FILE_NAME.fullmatch(name), name


def test_every_setting_runs_with_every_seed(study: Study) -> None:
    settings = study.settings()
    jobs, results = played(study)
    assert sorted({job.plan.seed for job in jobs}) == list(range(study.seeds))
    assert all(study.is_done(job.name, results) for job in settings)
    last = jobs[-study.seeds * len(settings) :]
    assert [job.plan.seed for job in last] == [seed for seed in range(study.seeds) for _ in settings]


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("quick", [False, True], ids=["whole", "quick"])
def test_specs_and_networks_can_be_read_and_go_together(name: str, quick: bool) -> None:
    for job in make(name, quick).settings():
        check_all(
            [Entry.read(job.spec, job.name)],
            dataclasses.replace(job.plan, task="digits"),  # whose data is here, and which has as many classes
            LaunchOptions(job.workers, job.engine),
            parse(job.network, Network),
        )


def test_jobs_are_equal_however_often_they_are_asked_for(study: Study) -> None:
    again, results = dataclasses.replace(study), played(study)[1]
    assert study.jobs() == again.jobs()
    assert study.more(results) == again.more(results) == []


def cost(jobs: list[Job]) -> float:
    return sum(job.cost * job.workers for job in jobs)


@pytest.mark.parametrize("name", names())
def test_the_quick_version_is_less_than_half_of_the_work(name: str) -> None:
    assert 0 < cost(played(make(name, quick=True))[0]) < cost(played(make(name))[0]) / 2


# --- what is told -----------------------------------------------------------------------------------------------------


def test_the_quick_version_has_the_same_sections(told: Told) -> None:
    quick = make(told.name, quick=True)
    story = quick.tell(played(quick)[1])
    assert [section.title for section in story.sections] == [section.title for section in told.story.sections]
    assert "±" not in " ".join(str(row) for table in story.summary for row in table.rows)


def test_the_finding_is_one_sentence_with_a_figure(told: Told) -> None:
    telling.check_finding(told)


def test_every_claim_has_an_expectation_a_figure_a_verdict_and_a_reason(told: Told) -> None:
    telling.check_claims(told, get_args(Verdict))


def test_tables_have_a_caption_and_a_cell_for_every_column(told: Told) -> None:
    telling.check_tables(told)
    assert told.story.summary, "a terminal has something to show"
    assert all(table in told.tables for table in told.story.summary)


def test_the_spread_is_shown_and_explained(told: Told) -> None:
    captions = [table.caption for table in told.tables if re.search(r"\d ± \d", str(table.rows))]
    assert captions
    for caption in captions:
        assert f"standard deviation over {SEEDS} seeds" in caption


@pytest.mark.parametrize("narrow", [False, True], ids=["wide", "narrow"])
def test_charts_show_all_there_is_and_no_text_is_cut_off_or_overlaps(told: Told, narrow: bool) -> None:
    telling.check_charts(told, narrow)


def test_figures_for_a_program_are_plain(told: Told) -> None:
    assert told.story.figures
    json.dumps(told.story.figures, allow_nan=False)


def test_the_report_is_sound_and_holds_everything(told: Told) -> None:
    telling.check_report(told)


def test_every_chart_of_the_page_is_a_picture_beside_it(told: Told) -> None:
    telling.check_pictures(told)


def test_every_row_of_the_page_has_as_many_columns_as_its_table(told: Told) -> None:
    telling.check_rows(told)


def test_the_page_has_its_sections_and_nothing_unfinished(told: Told) -> None:
    telling.check_page(told)
    assert find(told.name).question in told.page
