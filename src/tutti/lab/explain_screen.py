"""An explanation as a person reads it: a table, where each route wins, and a few sentences; and as a picture."""

from __future__ import annotations

from matplotlib.figure import Figure
from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tutti.collectives.auto import Auto
from tutti.lab.curves import Curve, Panel, make_figure, plain_curve
from tutti.lab.explain import SWEEP, Estimate, Explanation, Span, document_003, estimate, find_floor, sweep_sizes
from tutti.lab.labels import join
from tutti.lab.route_looks import find_looks
from tutti.lab.units import NOTHING, format_bytes, format_number, format_percent, format_seconds
from tutti.spec import Bytes, Rate, Seconds, format_value

_PUBLISHED = "tree, by levels"
_MARKS = {"auto": "° ", "native": "~ "}  # in front of a route that has a footnote
_COLUMNS = ("rounds\n", "busiest link\nbytes", "all links\nbytes", "time\nα–β", "busiest link\nbusy", "time\n× best")

_ON_ROUNDS = (
    "A round is one latency here, however many messages it has: routes that talk to everybody at once look better than "
    "they are where workers are many or messages short."
)


def make_screen(explanation: Explanation) -> RenderableType:
    parts: list[RenderableType] = [Text(_title(explanation), "bold"), Text(), _make_table(explanation), Text()]
    parts += [Text("where each wins", "bold"), _make_spans(explanation.spans, explanation.nbytes), Text()]
    if explanation.spans_of_few:
        title = "and without those that talk to everybody at once"
        parts += [Text(title, "bold"), _make_spans(explanation.spans_of_few, explanation.nbytes), Text()]
    parts += [Text(sentence) for sentence in _sentences(explanation)]
    return Group(*parts)


def _title(explanation: Explanation) -> str:
    return f"{explanation.operation} of {_size(explanation.nbytes)} over {_conditions(explanation)}"


def _conditions(explanation: Explanation) -> str:
    links = explanation.links
    rate, latency = format_value(8 * links.bandwidth, Rate), format_value(links.latency, Seconds)
    return f"{links.workers} workers, every link {rate}/s with a latency of {latency}"


def _size(nbytes: int) -> str:
    """As it is typed, and as it is printed elsewhere where that is something else."""
    typed, read = format_value(nbytes, Bytes), format_bytes(nbytes)
    same = read.replace(" ", "").replace(".00", "").replace(".0", "") == typed
    return read if same or len(typed) > 8 else f"{typed} ({read})"


# --- the table -------------------------------------------------------------------------------------------------------


def _make_table(explanation: Explanation) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    table.add_column("route\n", overflow="fold", min_width=12)
    for column in _COLUMNS:
        table.add_column(column, justify="right", no_wrap=True)
    rows = [(each.seconds, _row(each, explanation.best)) for each in explanation.estimates]
    winners = next(span.routes for span in explanation.spans if span.begin <= explanation.nbytes <= span.end)
    for _, row in sorted(rows, key=lambda pair: pair[0]):
        table.add_row(*row, style="bold" if row[0] in winners else None)
    if explanation.published is not None:  # below, since it is a formula and no route
        table.add_row(*_published_row(explanation.published, explanation.best), style="italic")
    return table


def _row(each: Estimate, best: float) -> list[str]:
    cost = each.cost
    return [
        f"{_MARKS.get(each.route.collective.name, '')}{each.route.name}",
        str(cost.rounds),
        format_bytes(cost.busiest),
        format_bytes(cost.total),
        format_seconds(each.seconds),
        format_percent(each.utilisation, 0),
        format_number(each.seconds / best),
    ]


def _published_row(seconds: float, best: float) -> list[str]:
    return [f"† {_PUBLISHED}", *[NOTHING] * 3, format_seconds(seconds), NOTHING, format_number(seconds / best)]


# --- where each wins -------------------------------------------------------------------------------------------------


def _make_spans(spans: list[Span], nbytes: int) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column(overflow="fold")
    for index, span in enumerate(spans):
        first, last = index == 0, index == len(spans) - 1
        where = f"from {format_bytes(span.begin)}" if last else f"up to {format_bytes(span.end)}"
        if first and last:
            where = "at every size"
        here = " ←" if span.begin <= nbytes <= span.end else ""
        tied = " (equally long)" if len(span.routes) > 1 else ""
        grid.add_row(f"  {where}", f"{join(list(span.routes))}{tied}{here}")
    return grid


# --- the sentences ---------------------------------------------------------------------------------------------------


def _sentences(explanation: Explanation) -> list[str]:
    sentences = [_on_latency(explanation), _on_floor(explanation)]
    if explanation.spans_of_few:
        sentences.append(_ON_ROUNDS)
    if explanation.published is not None:
        sentences.append(_on_published(explanation, explanation.published))
    autos = [each.route.collective for each in explanation.estimates if isinstance(each.route.collective, Auto)]
    sentences += [_on_auto(auto, explanation.nbytes) for auto in autos]
    if any(each.route.collective.name == "native" for each in explanation.estimates):
        sentences.append("~ the backend's own, by the formula of its usual algorithm; it takes no part in who wins.")
    return sentences


def _on_latency(explanation: Explanation) -> str:
    links = explanation.links
    if links.latency == 0:
        return "Without latency rounds cost nothing: only the bytes that pass one after another count."
    worth = format_bytes(links.worth)
    best = explanation.estimates[0]
    share = best.cost.rounds * links.latency / best.seconds
    return (
        f"One latency is worth {worth} on such a link (latency × bandwidth): a round with less than that is mostly "
        f"waiting. Of {best.route.name}'s time {format_number(100 * share)} % is latency."
    )


def _on_floor(explanation: Explanation) -> str:
    above = explanation.best / explanation.floor
    return (
        f"No algorithm takes less than {format_seconds(explanation.floor)}: the least bytes for the busiest link, and "
        f"one latency. {explanation.estimates[0].route.name} takes {format_number(above)} times that."
    )


def _on_auto(auto: Auto, nbytes: int) -> str:
    return (
        f"° auto's default, which is {auto.choose(nbytes)} at this size. A run measures first and takes the fastest "
        "route for every size."
    )


def _on_published(explanation: Explanation, seconds: float) -> str:
    links = explanation.links
    rounds = 2 * (links.workers - 1)
    ring = rounds * links.latency + rounds / links.workers * explanation.nbytes / links.bandwidth
    return (
        "† not a route but the formula of document 003, one of the reports this project began with, which takes an "
        f"all-reduce for (bytes/bandwidth)·log2(P) = {format_seconds(seconds)}: the whole buffer once per level of "
        "a binomial tree. That is a tree's time one way only, without latency: the sum is at the root then and has to "
        f"come back, {format_seconds(2 * seconds)} in all. The ring's is 2(P−1)·α + 2(P−1)/P·bytes/β = "
        f"{format_seconds(ring)}."
    )


# --- the picture -----------------------------------------------------------------------------------------------------


def make_picture(explanation: Explanation) -> Figure:
    """α–β time against size, one line per route; the size asked for is a point of every line."""
    operation, links = explanation.operation, explanation.links
    sizes = sweep_sizes(min(SWEEP[0], explanation.nbytes), max(SWEEP[1], explanation.nbytes))
    curves = []
    routes = sorted((each.route for each in explanation.estimates), key=lambda route: route.name)
    looks = find_looks(route.name for route in routes)
    for route in routes:
        points = [(float(size), estimate(route, operation, size, links).seconds) for size in sizes]
        curves.append(Curve(route.name, points, looks[route.name]))
    if explanation.published is not None:
        points = [(float(size), document_003(size, links)) for size in sizes]
        curves.append(plain_curve(_PUBLISHED, points, ":"))
    points = [(float(size), find_floor(operation, size, links)) for size in sizes]
    curves.append(plain_curve("floor", points, "-"))
    note = (
        f"α–β model: rounds × latency + bytes that pass one after another / bandwidth; {_conditions(explanation)}\n"
        "dashed: the size asked for · floor: the least bytes of any algorithm for the busiest link, and one latency"
    )
    if explanation.published is not None:
        note += f" · {_PUBLISHED}: (bytes/bandwidth)·log2(P), document 003's formula, one way only"
    return make_figure([Panel(operation, curves, at=explanation.nbytes)], f"{operation}, time against size", note)
