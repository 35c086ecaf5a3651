"""A benchmark as a picture: time against size, a line per route, the floor beside them; a panel per table."""

from __future__ import annotations

from matplotlib.figure import Figure

from tutti.lab.bench.rows import Row, describe_title, group_rows
from tutti.lab.curves import Curve, Panel, make_figure, plain_curve, route_curve


def make_picture(rows: list[Row], conditions: str) -> Figure:
    routes = list(dict.fromkeys(row.route for row in rows))
    panels = [Panel(describe_title(title), _make_curves(sizes, routes)) for title, sizes in group_rows(rows).items()]
    title = panels[0].title if len(panels) == 1 else "time against size"
    return make_figure(panels, title, f"median of the slowest worker's times · {conditions}")


def _make_curves(sizes: dict[int, list[Row]], routes: list[str]) -> list[Curve]:
    every = [row for rows in sizes.values() for row in rows]
    curves = []
    for index, name in enumerate(routes):
        points = [(float(row.bytes), row.seconds) for row in every if row.route == name]
        if points:
            curves.append(route_curve(name, points, index))
    floor = [(float(nbytes), rows[0].floor) for nbytes, rows in sizes.items() if rows[0].floor > 0]
    return [*curves, plain_curve("floor", floor, "-")] if floor else curves
