"""A topology in a terminal: its figures, a drawing, who sends to whom, the mixing matrix, and how a message spreads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tutti.graph import Matrix, make_mixing
from tutti.lab.labels import join
from tutti.lab.topology_canvas import draw_text
from tutti.lab.topology_figures import TopologyFigures, count_workers, format_degree, format_gap, format_rounds
from tutti.lab.topology_spread import Spread, describe, is_tree
from tutti.lab.units import NOTHING
from tutti.topologies.base import Topology

_LOOK: dict[str, Any] = {
    "box": SIMPLE_HEAD,
    "show_edge": False,
    "pad_edge": False,
    "padding": (0, 2, 0, 0),
    "header_style": "bold",
}
_NAME = "cyan"
_MOST_LISTED = 32  # workers whose peers are listed
_MOST_MIXED = 8  # workers whose mixing matrix is shown
_STEPS = 4  # of a changing topology that are listed
_NOTHING_YET, _MORE = "·", "◆"
_SHADES = (("░", 0.25, "below 25 %"), ("▒", 0.5, "below 50 %"), ("▓", 0.9, "below 90 %"), ("█", 1.5, "up to 150 %"))
_MOST_SHADED = 72  # workers


# --- all of them -----------------------------------------------------------------------------------------------------


def make_overview(found: list[TopologyFigures], refused: list[str]) -> RenderableType:
    """A line of figures for every topology there is, and why some have none."""
    table = Table(**_LOOK)
    table.add_column("topology", style=_NAME)
    for header in ("links", "degree", "diameter", "mean delay", "spectral gap"):
        table.add_column(header, justify="right")
    table.add_column()
    for each in found:
        table.add_row(each.spec, *_overview_row(each))
    title = f"over {count_workers(found[0].workers)}, {found[0].rule} weights" if found else "none works"
    parts: list[RenderableType] = [
        Text(title, "bold"),
        Text(),
        table,
        Text(),
        *(Text(sentence, "dim") for sentence in refused),
    ]
    changes = "In parentheses the gap per step, where a topology changes. " if any(e.changing for e in found) else ""
    return Group(*parts, Text(f"{changes}tutti topology NAME draws one of them.", "dim"))


def _overview_row(each: TopologyFigures) -> list[str]:
    return [
        str(each.links),
        format_degree(each),
        format_rounds(each.diameter),
        format_rounds(each.mean_delay, 2),
        format_gap(each),
        _name_traits(each),
    ]


def _name_traits(each: TopologyFigures) -> str:
    traits = [
        f"{each.parts} parts" if each.parts > 1 else "",
        "one-way" if each.directed else "",
        f"gap over {each.period} steps" if each.changing else "",
    ]
    return ", ".join(filter(None, traits))


# --- one of them -----------------------------------------------------------------------------------------------------


def make_details(topology: Topology, figures: TopologyFigures, equals: Sequence[str] = ()) -> RenderableType:
    workers, step = figures.workers, figures.step
    drawing = _drawing(topology, workers, step)
    if workers <= _MOST_LISTED and not is_tree(topology, workers):
        drawing = Columns([drawing, _peers(topology, workers, step)], padding=(0, 6))
    shown: list[RenderableType] = [_title(figures), Text(), _figures(figures, equals), Text(), drawing]
    if workers <= _MOST_MIXED:
        shown += [Text(), _mixing(topology, figures)]
    return Group(*shown)


def _title(figures: TopologyFigures) -> Text:
    return Text.assemble((figures.spec, f"bold {_NAME}"), f" over {count_workers(figures.workers)}")


def _figures(each: TopologyFigures, equals: Sequence[str]) -> Table:
    rows = Table.grid(padding=(0, 2, 0, 0))
    rows.add_column(style="bold", no_wrap=True)
    rows.add_column()
    rows.add_column(style="dim")
    for row in _figure_rows(each, equals):
        rows.add_row(*row)
    return rows


def _figure_rows(each: TopologyFigures, equals: Sequence[str]) -> Iterable[tuple[str, str, str]]:
    kinds = [
        "one-way" if each.directed else "",
        f"in step {each.step}, others in other steps" if each.changing else "",
        f"in {each.parts} graphs, each for its part of a buffer" if each.parts > 1 else "",
        f"over so many workers the same as {join(list(equals))}" if equals else "",
    ]
    yield "links", str(each.links), ", ".join(filter(None, kinds))
    yield "degree", format_degree(each), "peers that a worker sends to" + (", over all parts" if each.parts > 1 else "")
    yield (
        "diameter",
        format_rounds(each.diameter),
        "rounds until all messages are everywhere, if everything is passed on",
    )
    yield "mean delay", format_rounds(each.mean_delay, 2), "rounds between two workers"
    over = f" over {each.period} steps (and per step)" if each.changing else ""
    yield "spectral gap", format_gap(each), f"{each.rule} weights{over}; 1: gossip agrees at once, 0: never"


def _drawing(topology: Topology, workers: int, step: int) -> RenderableType:
    drawings = [
        Text(draw_text(topology, workers, step, part), no_wrap=True, overflow="ignore")
        for part in range(topology.parts)
    ]
    if len(drawings) == 1:
        return drawings[0]
    titled = [Group(Text(f"part {part + 1}", "dim"), drawing) for part, drawing in enumerate(drawings)]
    return Columns([Padding(each, (0, 6, 0, 0)) for each in titled])


def _peers(topology: Topology, workers: int, step: int) -> Table:
    """Who sends to whom; where that changes, step by step."""
    steps = range(step, step + min(_STEPS, topology.period(workers))) if topology.changing else [step]
    table = Table(**_LOOK)
    table.add_column("worker", justify="right", style=_NAME)
    for at in steps:
        table.add_column(f"sends in step {at}" if topology.changing else "sends to" if topology.directed else "peers")
    for rank in range(workers):
        cells = [" ".join(map(str, topology.peers(rank, workers, at))) or NOTHING for at in steps]
        table.add_row(str(rank), *cells)
    return table


def _mixing(topology: Topology, figures: TopologyFigures) -> RenderableType:
    """What worker i (row) takes of worker j's value (column)."""
    step = f", step {figures.step}" if figures.changing else ""
    parts = ", part 1" if figures.parts > 1 else ""
    title = f"mixing matrix ({figures.rule}{step}{parts}): a worker's row says what it takes of whom"
    table = Table(**_LOOK)
    for header in ("", *map(str, range(figures.workers))):
        table.add_column(header, justify="right", style=None if header else _NAME)
    matrix = make_mixing(topology, figures.workers, figures.step, rule=figures.rule)
    for rank, row in enumerate(matrix):
        table.add_row(str(rank), *(_format_weight(weight) for weight in row))
    return Group(Text(title, "bold"), Text(), table)


def _format_weight(weight: float) -> str:
    return "·" if weight == 0 else str(Fraction(weight).limit_denominator(1000))


# --- spread ----------------------------------------------------------------------------------------------------------


def make_spread(each: Spread) -> RenderableType:
    """Both ways side by side, where there is room for it."""
    title = Text.assemble((each.spec, f"bold {_NAME}"), f" over {count_workers(each.workers)}: ")
    title.append(f"the share of worker {each.source}'s message that everybody has, round by round")
    said = Text("\n".join(describe(each)))
    if each.workers > _MOST_SHADED:
        return Group(title, Text(), said, Text("too many workers to draw here; --png FILE draws them", "dim"))
    panels = [
        _shades(f"gossip ({each.rule} weights)", each.gossip),
        _shades(f"relay, {each.way.removeprefix('relayed ')}", each.relay),
    ]
    return Group(title, Text(), Columns(panels, padding=(1, 4)), _key(each.workers), Text(), said)


def _shades(title: str, shares: Matrix) -> RenderableType:
    workers = shares.shape[1]
    cell = _cell(workers)
    lines = [Text(title, "bold"), Text(f"{'worker':>8} {_number_workers(workers, cell)}", "dim")]
    for at, row in enumerate(shares):
        marks = "".join(f"{_shade(share * workers) * max(1, cell - 1):<{cell}}" for share in row).rstrip()
        lines.append(Text.assemble((f"{'' if at else 'round '}{at}".rjust(8) + " ", "dim"), marks))
    return Group(*lines)


def _cell(workers: int) -> int:
    """Letters per worker."""
    return 3 if workers <= 32 else 1


def _number_workers(workers: int, cell: int) -> str:
    every = 1 if cell > 1 else 10
    return "".join(f"{worker:<{cell * every}}" for worker in range(0, workers, every)).rstrip()


def _shade(fair: float) -> str:
    """A mark for so many times 1/n."""
    if fair == 0:
        return _NOTHING_YET
    return next((shade for shade, below, _ in _SHADES if fair < below), _MORE)


def _key(workers: int) -> Text:
    said = "   ".join(f"{shade} {name}" for shade, _, name in _SHADES)
    return Text(f"in parts of 1/{workers}:   {_NOTHING_YET} nothing   {said}   {_MORE} more", "dim")
