"""A benchmark as a picture: time against size, a line per route, the floor beside them; a panel per table.

With a single size there is a bar per route instead, and one for the floor.
"""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from tutti.lab.bench.rows import Row, describe_title, group_rows
from tutti.lab.curves import Curve, Panel, make_figure, plain_curve
from tutti.lab.route_looks import find_looks


def make_picture(rows: list[Row], conditions: str) -> Figure:
    looks = find_looks(row.route for row in rows)
    panels = [Panel(describe_title(title), _make_curves(sizes, looks)) for title, sizes in group_rows(rows).items()]
    several = "time against size" if any(panel.size is None for panel in panels) else "time of every route"
    title = panels[0].title if len(panels) == 1 else several
    return make_figure(panels, title, f"median of the slowest worker's times · {conditions}")


def _make_curves(sizes: dict[int, list[Row]], looks: dict[str, dict[str, Any]]) -> list[Curve]:
    points: dict[str, list[tuple[float, float]]] = {}
    for row in (row for rows in sizes.values() for row in rows):
        points.setdefault(row.route, []).append((float(row.bytes), row.seconds))
    curves = [Curve(name, found, looks[name]) for name, found in points.items()]
    floor = [(float(nbytes), rows[0].floor) for nbytes, rows in sizes.items() if rows[0].floor > 0]
    return [*curves, plain_curve("floor", floor, "-")] if floor else curves
