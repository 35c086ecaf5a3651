"""One file with everything in it, that asks for nothing and runs nothing but its own script."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import os
import re
from pathlib import Path

import pytest
from sample_records import make_learning_race, make_record

from tutti.errors import UserError
from tutti.lab.record import Record
from tutti.lab.report.page import make_page, write_report
from tutti.lab.report.parts import Paragraph, Section


@pytest.fixture(scope="module", name="page")
def _page() -> str:
    return make_page(make_learning_race())


def headings(page: str, level: int) -> list[str]:
    return re.findall(rf"<h{level}[^>]*>(.*?)</h{level}>", page)


def test_findings_first_then_results_figures_traffic_and_conditions(page: str) -> None:
    assert headings(page, 1) == ["7 runs on digits"]
    assert headings(page, 2) == ["Findings", "Results", "Learning", "Steps", "Traffic", "Conditions"]
    assert headings(page, 3)[:3] == ["Test accuracy", "Test loss", "Where a step's time went".replace("'", "&#x27;")]


def test_it_asks_for_nothing(page: str) -> None:
    assert not re.search(r"https?://|//\w+\.\w+/|@import|url\((?!#)", page)
    assert re.findall(r'\b(?:src|href)="(?!#)(.*?)"', page) == ["data:,"]


def test_only_its_own_script_may_run(page: str) -> None:
    (script,) = re.findall(r"<script>(.*?)</script>", page, flags=re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    (policy,) = re.findall(r'Content-Security-Policy" content="(.*?)"', page)
    assert policy.startswith("default-src 'none';")
    assert policy.endswith(f"script-src 'sha256-{digest}'")


def test_all_ids_differ(page: str) -> None:
    ids = re.findall(r'\bid="(.*?)"', page)
    assert len(ids) == len(set(ids)) > 100


def test_it_is_small(page: str) -> None:
    assert len(page.encode()) < 500_000


def test_the_same_records_make_the_same_page() -> None:
    assert make_page([make_record()]) == make_page([make_record()])


def test_names_are_written_as_they_are() -> None:
    evil = "<script>alert(1)</script>"
    record = make_record(evil, task=evil, network={"asked": evil})
    page = make_page([dataclasses.replace(record, command=evil, machine={evil: evil}, spec=f"{evil}2")])
    assert evil not in page
    assert page.count("<script>") == 1
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page


@pytest.mark.parametrize(
    ("records", "title"),
    [
        ([make_record(accuracies=())], "ddp on digits"),
        ([make_record(accuracies=()), make_record("b", accuracies=(), task="synthetic")], "2 runs"),
    ],
)
def test_it_finds_a_title(records: list[Record], title: str) -> None:
    assert headings(make_page(records), 1) == [title]
    assert headings(make_page(records, "Mine & yours"), 1) == ["Mine &amp; yours"]


def test_sections_of_others_stand_behind_the_findings() -> None:
    mine = Section("Published beside ours", [Paragraph("A verdict.")])
    record = make_record(accuracies=())
    assert headings(make_page([record], extra=[mine]), 2)[:3] == ["Findings", "Published beside ours", "Results"]
    assert headings(make_page([], "Only words", [mine]), 2) == ["Published beside ours"]


# --- files -----------------------------------------------------------------------------------------------------------


def test_it_is_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_report([make_record(accuracies=())], path)
    assert path.read_text().endswith("</html>\n")
    assert os.listdir(tmp_path) == ["report.html"]


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot write"):
        write_report([make_record(accuracies=())], tmp_path / "nowhere" / "report.html")
