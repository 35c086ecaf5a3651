"""Every worker and link is drawn, arrows where links are one-way, and no text is cut off or covers another."""

from __future__ import annotations

import itertools
import struct
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.axis import Axis
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from tutti.lab.picture import COLOURS
from tutti.lab.topology_figures import measure
from tutti.lab.topology_picture import make_graph, make_spread, save
from tutti.lab.topology_spread import spread
from tutti.spec import parse
from tutti.topologies.base import Topology

GRAPHS = [
    ("chain", 1),
    ("ring", 2),
    ("chain", 30),
    ("star", 12),
    ("binary-tree", 31),
    ("double-binary-tree", 16),
    ("torus", 12),
    ("hypercube", 16),
    ("complete", 16),
    ("exponential", 8),
    ("one-peer-exponential", 8),
    ("random-pairing", 9),
    ("random-regular", 64),
    ("edge-list(0-1-2-3+1-3)", 4),
]
SPREADS = [("chain", 8), ("double-binary-tree", 16), ("ring", 64), ("exponential", 8), ("ring", 1), ("complete", 2)]


def graph(spec: str, workers: int, step: int = 0) -> Figure:
    topology = parse(spec, Topology)
    return make_graph(topology, measure(topology, workers, step=step))


def spread_of(spec: str, workers: int, source: int = 0) -> Figure:
    return make_spread(spread(parse(spec, Topology), workers, source))


def shown(axis: Axis) -> list[Text]:
    low, high = sorted(axis.get_view_interval())
    return [tick.label1 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high] + [axis.label]


def texts(figure: Figure) -> list[Text]:
    """All that is really drawn."""
    found = [*figure.texts, *(text for legend in figure.legends for text in legend.get_texts())]
    for axes in figure.axes:
        found += [child for child in axes.get_children() if isinstance(child, Text)]
        found += [*shown(axes.xaxis), *shown(axes.yaxis)] if axes.axison else []
    return [text for text in found if text.get_visible() and text.get_text()]


def check_texts(figure: Figure) -> None:
    figure.canvas.draw()
    boxes = {(text.get_text(), index): text.get_window_extent() for index, text in enumerate(texts(figure))}
    for (one, first), (other, second) in itertools.combinations(boxes.items(), 2):
        assert Bbox.intersection(first, second) is None, f"{one} and {other} overlap"
    for name, box in boxes.items():
        assert figure.bbox.fully_contains(box.x0, box.y0), name
        assert figure.bbox.fully_contains(box.x1, box.y1), name


def arrows(figure: Figure) -> list[FancyArrowPatch]:
    return [patch for axes in figure.axes for patch in axes.patches if isinstance(patch, FancyArrowPatch)]


# --- the graph -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("spec", "workers"), GRAPHS)
def test_no_two_texts_of_a_graph_overlap_and_none_is_cut_off(spec: str, workers: int) -> None:
    check_texts(graph(spec, workers))


@pytest.mark.parametrize(("spec", "workers"), GRAPHS)
def test_every_worker_is_drawn_inside_its_panel(spec: str, workers: int) -> None:
    figure = graph(spec, workers)
    figure.canvas.draw()
    for axes in figure.axes:
        assert len(axes.lines) == workers
        for line in axes.lines:
            x, y = axes.transData.transform((line.get_xdata()[0], line.get_ydata()[0]))
            room = line.get_markersize() / 2 * figure.dpi / 72
            assert axes.bbox.padded(1 - room).contains(x, y)


@pytest.mark.parametrize(("spec", "workers", "links"), [("ring", 8, 8), ("torus", 12, 24), ("complete", 5, 10)])
def test_every_link_is_drawn_once(spec: str, workers: int, links: int) -> None:
    figure = graph(spec, workers)
    (axes,) = figure.axes
    (straight,) = (each for each in axes.collections if isinstance(each, LineCollection))
    assert len(straight.get_segments()) + len(arrows(figure)) == links


def test_links_round_the_back_of_a_torus_are_bent() -> None:
    assert len(arrows(graph("torus", 12))) == 7


def test_one_way_links_are_arrows_coloured_by_their_length() -> None:
    figure = graph("exponential", 8)
    colours = [arrow.get_edgecolor()[:3] for arrow in arrows(figure)]
    assert len(colours) == 24
    assert [colours.count(to_rgb(colour)) for colour in COLOURS[:3]] == [8, 8, 8]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["1 ahead", "2 ahead", "4 ahead"]


def test_a_changing_topology_has_a_panel_per_step_in_the_colours_of_the_key() -> None:
    figure = graph("one-peer-exponential", 8, step=1)
    assert [axes.get_title() for axes in figure.axes] == ["step 1", "step 2", "step 3"]
    colours = [axes.patches[0].get_edgecolor()[:3] for axes in figure.axes]
    assert colours == [to_rgb(COLOURS[at]) for at in (1, 2, 0)]
    assert len(graph("random-pairing", 9).axes) == 4


def test_in_both_trees_nobody_is_dark_twice() -> None:
    first, second = graph("double-binary-tree", 9).axes
    dark = [
        {at for at, line in enumerate(axes.lines) if line.get_markerfacecolor() == COLOURS[0]}
        for axes in (first, second)
    ]
    assert len(dark[0]) == len(dark[1]) == 4
    assert not dark[0] & dark[1]


def test_numbers_are_left_out_where_there_is_no_room() -> None:
    assert len(graph("ring", 32).axes[0].texts) == 32
    assert not graph("ring", 256).axes[0].texts


# --- the spread ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("spec", "workers"), SPREADS)
def test_no_two_texts_of_a_spread_overlap_and_none_is_cut_off(spec: str, workers: int) -> None:
    check_texts(spread_of(spec, workers))


def test_cells_are_the_shares() -> None:
    each = spread(parse("chain", Topology), 8, 3)
    gossip, relay, _ = make_spread(each).axes
    for axes, expected in ((gossip, each.gossip), (relay, each.relay)):
        drawn = axes.images[0].get_array()
        assert drawn is not None
        assert np.ma.filled(drawn, 0) == pytest.approx(expected)
        assert np.ma.getmaskarray(drawn).tolist() == (expected == 0).tolist()
    assert [text.get_text() for text in relay.texts[:4]] == ["12.5"] * 4


def test_both_panels_have_one_scale_with_the_fair_share_in_its_middle() -> None:
    gossip, relay, bar = spread_of("ring", 16).axes
    norms = [axes.images[0].norm for axes in (gossip, relay)]
    assert [norm(1 / 16) for norm in norms] == [0.5, 0.5]
    assert [norm(1.0) for norm in norms] == [1, 1]
    assert [label.get_text() for label in bar.get_yticklabels()] == ["0 %", "6.25 %\n= 1/16", "100 %"]


def test_panels_say_what_they_are() -> None:
    gossip, relay, _ = spread_of("ring", 6).axes
    assert gossip.get_title(loc="left") == "gossip, metropolis weights"
    assert relay.get_title(loc="left") == "relay, on the tree of shortest ways from worker 0"
    assert (gossip.get_xlabel(), gossip.get_ylabel()) == ("worker", "round")


# --- files -----------------------------------------------------------------------------------------------------------


def test_png(tmp_path: Path) -> None:
    save(graph("ring", 8), tmp_path / "ring", "png")
    header = (tmp_path / "ring").read_bytes()[:24]
    assert header[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", header[16:24])[0] >= 600
    assert [path.name for path in tmp_path.iterdir()] == ["ring"]


def test_svg_has_words_and_is_the_same_twice(tmp_path: Path) -> None:
    for name in ("one.svg", "two.svg"):
        save(spread_of("chain", 8), tmp_path / name, "svg")
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
    words = [element.text for element in ElementTree.parse(tmp_path / "one.svg").iter() if element.text]
    assert "How worker 0's message spreads: chain over 8 workers" in words


def test_a_picture_that_fails_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nonsense"):
        save(graph("ring", 3), tmp_path / "ring.png", "nonsense")
    assert not list(tmp_path.iterdir())
