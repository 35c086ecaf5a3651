"""What a person reads: all figures in a table, the ranges, document 003's formula and what it is; and the picture."""

from __future__ import annotations

import pytest
from rich.console import Console

from tutti.lab.explain import Explanation, Links, explain
from tutti.lab.explain_screen import make_picture, make_screen
from tutti.lab.routes import find_routes

GIGABIT = Links(workers=4, latency=1e-4, bandwidth=125e6)


def read(explanation: Explanation, width: int = 110) -> str:
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(make_screen(explanation))
    console.file.close()
    return console.export_text()


def explain_all(operation: str = "all-reduce", nbytes: int = 37_000_000, links: Links = GIGABIT) -> Explanation:
    return explain(operation, find_routes(operation, ["ring", "star", "native"]), nbytes, links)


def test_title_and_figures() -> None:
    text = read(explain_all())
    assert "all-reduce of 37MB (35.3 MiB) over 4 workers, every link 1Gbit/s with a latency of 0.1ms" in text
    ring = next(line.split() for line in text.splitlines() if line.startswith("ring"))
    assert ring == ["ring", "6", "52.9", "MiB", "212", "MiB", "445", "ms", "100", "%", "1.00"]
    star = next(line.split() for line in text.splitlines() if line.startswith("star"))
    assert star == ["star", "2", "106", "MiB", "212", "MiB", "1.78", "s", "50", "%", "4.00"]
    assert "~ native" in text
    assert "by the formula of its usual algorithm" in text


def test_document_003_stands_below_the_routes_and_is_told_what_it_is() -> None:
    text = read(explain_all())
    lines = [line.split("  ")[0] for line in text.splitlines()]
    assert lines.index("ring") < lines.index("star") < lines.index("† tree, by levels")
    said = " ".join(text.split())
    assert "† not a route but the formula of document 003, one of the reports this project began with" in said
    assert "(bytes/bandwidth)·log2(P) = 592 ms" in said
    assert "a tree's time" in said
    assert "one way only" in said
    assert "1.18 s in all" in said
    assert "2(P−1)·α + 2(P−1)/P·bytes/β = 445 ms" in said


def test_document_003_speaks_of_all_reduce_only() -> None:
    text = read(explain_all("broadcast"))
    assert "003" not in text
    assert "†" not in text


@pytest.mark.parametrize(("nbytes", "default"), [(4096, "butterfly"), (37_000_000, "ring")])
def test_auto_is_shown_by_its_default_and_says_so(nbytes: int, default: str) -> None:
    text = read(explain("all-reduce", find_routes("all-reduce", ["auto", "star"]), nbytes, GIGABIT))
    assert "\n° auto " in text
    assert f"° auto's default, which is {default} at this size. A run measures first" in " ".join(text.split())
    assert "°" not in read(explain_all()), "no footnote without the route"


def test_ranges_and_the_one_asked_for() -> None:
    """star is 2 rounds and 6 S, ring 6 rounds and 1.5 S: equal at 4 αβ / 4.5 = 11,111 bytes."""
    begin, end = find_ranges(read(explain_all()))
    assert begin[:2] == ["up", "to"]
    assert float(begin[2]) == pytest.approx(11_111 / 1024, rel=0.01)
    assert begin[3:] == ["KiB", "star"]
    assert end == ["from", begin[2], "KiB", "ring", "←"]
    assert find_ranges(read(explain_all(nbytes=4096)))[0][-1] == "←"


def find_ranges(text: str) -> list[list[str]]:
    lines = text.splitlines()
    first = lines.index(next(line for line in lines if line.strip() == "where each wins")) + 1
    return [line.split() for line in lines[first : first + 2]]


def test_one_winner_at_every_size() -> None:
    text = read(explain_all(links=Links(4, 0.0, 125e6)))
    assert "at every size  ring" in text
    assert "Without latency rounds cost nothing" in text


def test_latency_times_bandwidth_is_said_in_bytes() -> None:
    assert "One latency is worth 12.2 KiB" in read(explain_all())


@pytest.mark.parametrize("width", [80, 110])
def test_no_figure_is_cut_off(width: int) -> None:
    text = read(explain_all(), width)
    assert "…" not in text
    assert max(len(line) for line in text.splitlines()) <= width


def test_the_picture_has_every_route_the_floor_the_formula_and_the_size() -> None:
    figure = make_picture(explain_all())
    labels = {text.get_text() for text in figure.legends[0].get_texts()}
    assert labels == {"ring", "star", "native", "floor", "tree, by levels"}
    (axes,) = figure.axes
    assert any(list(line.get_xdata()) == [37_000_000] * 2 for line in axes.lines)
    assert "tree, by levels" not in {
        t.get_text() for t in make_picture(explain_all("broadcast")).legends[0].get_texts()
    }
