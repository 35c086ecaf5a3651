"""The contract of every reproduction found in the folder, told from records by hand: nothing is run."""

from __future__ import annotations

import dataclasses
import itertools
import json
import pickle
import re
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple, get_args

import matplotlib
import pytest
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox
from sample_results import make_results

from tutti.lab.experiment import Job, Results
from tutti.lab.report.chart import Chart
from tutti.lab.report.parts import Section, Table
from tutti.lab.report.svg import LOOK
from tutti.lab.reproductions.base import Reproduction, Story, Verdict, find, names
from tutti.lab.run import Entry, check_all
from tutti.lab.story import write_page
from tutti.launch import LaunchOptions
from tutti.models.base import Model
from tutti.networks.base import Network
from tutti.spec import member, parse
from tutti.spec import names as members
from tutti.tasks.base import Task, find_task

FILE_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,59}")
SENTENCE = re.compile(r"\S[^\n]*\.")
ANOTHER = re.compile(r"[.!?] +[A-Z]")  # where a second sentence begins
CORES = 2


class Told(NamedTuple):
    """A reproduction by its name, and all it tells."""

    name: str
    reproduction: Reproduction
    story: Story
    folder: Path  # with report.html and the page

    @property
    def report(self) -> str:
        return (self.folder / "report.html").read_text()

    @property
    def page(self) -> str:
        return (self.folder / f"{self.name}.md").read_text()


@pytest.fixture(scope="module")
def all_told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Told]:
    return {name: tell(name, tmp_path_factory.mktemp(name)) for name in names()}


def tell(name: str, folder: Path) -> Told:
    reproduction = find(name)
    results = make_results(reproduction.jobs(False), reproduction.repeats)
    story = reproduction.tell(results)
    few = Results({name: results[name] for name in list(results)[:1]})  # whose own charts are other tests' business
    write_page(name, reproduction, story, few, folder, folder)
    return Told(name, reproduction, story, folder)


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
    monkeypatch.setattr("tutti.networks.hosts.count_cores", lambda: CORES)
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
    story = told.reproduction.tell(make_results(told.reproduction.jobs(True)))
    assert [claim.text for claim in story.claims] == [claim.text for claim in told.story.claims]
    assert [section.title for section in story.sections] == [section.title for section in told.story.sections]


def test_the_same_records_tell_the_same(told: Told) -> None:
    results = make_results(told.reproduction.jobs(False), told.reproduction.repeats)
    again = told.reproduction.tell(results)
    assert (again.finding, again.claims) == (told.story.finding, told.story.claims)


def test_the_finding_is_one_sentence_with_a_figure(told: Told) -> None:
    assert SENTENCE.fullmatch(told.story.finding)
    assert not ANOTHER.search(told.story.finding), told.story.finding
    assert re.search(r"\d", told.story.finding)


def test_every_claim_has_both_figures_a_verdict_and_a_reason(told: Told) -> None:
    assert told.story.claims
    assert len({claim.text for claim in told.story.claims}) == len(told.story.claims)
    for claim in told.story.claims:
        assert claim.verdict in get_args(Verdict)
        assert SENTENCE.fullmatch(claim.text)
        assert SENTENCE.fullmatch(claim.why)
        assert claim.published
        assert re.search(r"\d", claim.ours), claim.ours
        assert "nan" not in " ".join(dataclasses.astuple(claim)).split()
    json.dumps([dataclasses.asdict(claim) for claim in told.story.claims])


def tables(sections: list[Section]) -> Iterator[Table]:
    return (part for section in sections for part in section.parts if isinstance(part, Table))


def test_tables_have_a_caption_and_a_cell_for_every_column(told: Told) -> None:
    for table in tables([*told.story.sections]):
        assert table.caption.endswith(".")
        assert table.rows
        assert len(set(table.header)) == len(table.header), table.header
        assert {len(row) for row in table.rows} == {len(table.header)}, table.caption


# --- charts -----------------------------------------------------------------------------------------------------------


def charts(story: Story) -> Iterator[Chart]:
    return (part for section in story.sections for part in section.parts if isinstance(part, Chart))


def test_there_is_something_to_see(told: Told) -> None:
    assert any(charts(told.story)), "a reproduction has at least one figure"


@pytest.mark.parametrize("narrow", [False, True], ids=["wide", "narrow"])
def test_charts_show_all_there_is_and_no_text_is_cut_off_or_overlaps(told: Told, narrow: bool) -> None:
    for chart in charts(told.story):
        figure = lay_out(chart, narrow)
        for axes in figure.axes:
            assert axes.get_xlabel() or axes.get_ylabel()
            assert holds(axes.get_xlim(), axes.dataLim.intervalx), f"{chart.title} is cut off"
            assert holds(axes.get_ylim(), axes.dataLim.intervaly), f"{chart.title} is cut off"
        boxes = [(text.get_text(), text.get_window_extent()) for text in texts(figure)]
        for text, box in boxes:
            assert figure.bbox.fully_contains(box.x0, box.y0), f"{chart.title}: {text} is cut off"
            assert figure.bbox.fully_contains(box.x1, box.y1), f"{chart.title}: {text} is cut off"
        for (one, first), (other, second) in itertools.combinations(boxes, 2):
            assert Bbox.intersection(first, second) is None, f"{chart.title}: {one} and {other} overlap"


def holds(view: Sequence[float], data: Sequence[float]) -> bool:
    slack = 1e-6 * abs(view[1] - view[0])
    return min(view) - slack <= min(data) and max(data) <= max(view) + slack


def lay_out(chart: Chart, narrow: bool) -> Figure:
    figure = chart.draw(narrow)
    with matplotlib.rc_context(LOOK):
        FigureCanvasAgg(figure).draw()
    return figure


def texts(figure: Figure) -> list[Text]:
    """All that is really drawn, but not what stands on lines and bars."""
    found = [text for axes in figure.axes for axis in (axes.xaxis, axes.yaxis) for text in shown(axis)]
    return [text for text in found if text.get_visible() and text.get_text()]


def shown(axis: Axis) -> list[Text]:
    low, high = sorted(axis.get_view_interval())
    labels = [tick.label1 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
    return [*labels, axis.label]


# --- the report -------------------------------------------------------------------------------------------------------

_VOID = {"meta", "link", "br", "img", "input", "hr"}


class Reader(HTMLParser):
    """Refuses tags that do not match; keeps the text, ids and references."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.references: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in _VOID:
            self.open.append(tag)
        self._note(attrs)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._note(attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def _note(self, attrs: list[tuple[str, str | None]]) -> None:
        given = {key: value or "" for key, value in attrs}
        self.ids += [given["id"]] if "id" in given else []
        for value in given.values():
            self.references += re.findall(r"url\(#([^)]+)\)", value)
        for key in ("href", "aria-labelledby"):
            self.references += [given[key].removeprefix("#")] if key in given and "data:" not in given[key] else []


def test_the_report_is_sound_and_holds_everything(told: Told) -> None:
    reader = Reader(told.report)
    assert reader.open == []
    assert len(set(reader.ids)) == len(reader.ids)
    assert set(reader.references) <= set(reader.ids)
    words = plain(" ".join(reader.words))
    for section in told.story.sections:
        assert plain(section.title) in words
    for table in tables([*told.story.sections]):
        for cell in (cell for row in table.rows for cell in row):
            assert plain(cell if isinstance(cell, str) else cell.text) in words
    for claim in told.story.claims:
        for part in dataclasses.astuple(claim):
            assert plain(part) in words
    assert plain(told.story.finding) in words


def plain(text: str) -> str:
    return " ".join(text.split())


# --- the page ---------------------------------------------------------------------------------------------------------


def test_links_of_the_page_lead_somewhere(told: Told) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", told.page):
        assert "://" in target or (told.folder / target).exists(), target


def test_every_chart_of_the_page_is_a_picture_beside_it(told: Told) -> None:
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", told.page)
    assert len(pictures) == len(list(charts(told.story)))
    assert sorted(pictures) == sorted(path.name for path in told.folder.glob("*.png"))
    for name in pictures:
        assert (told.folder / name).read_bytes()[:4] == b"\x89PNG"


def test_every_row_of_the_page_has_as_many_columns_as_its_table(told: Told) -> None:
    blocks = [block for block in told.page.split("\n\n") if block.startswith("|")]
    assert len(blocks) >= 1 + len(list(tables([*told.story.sections])))
    for block in blocks:
        rows = [re.split(r"(?<!\\)\|", line) for line in block.splitlines()]
        assert len({len(row) for row in rows}) == 1, block
        assert set(rows[1][1:-1]) == {" --- "}


def test_the_page_has_its_sections_and_nothing_unfinished(told: Told) -> None:
    headings = re.findall(r"^## (.+)$", told.page, flags=re.MULTILINE)
    own = [section.title for section in told.story.sections]
    assert headings == ["Finding", "Claim by claim", *own, "Conditions"]
    assert f"# {told.reproduction.title}\n" in told.page
    assert told.reproduction.document in told.page
    assert not list(told.folder.glob("*.draft"))
    assert not re.search(r"\bnan\b|None|<[a-z]+ object|\{[a-z_]+\}", told.page)
