"""A topology drawn in letters: trees with branches, chains as a line, few workers as points joined by lines of dots,
and many as a table with a mark for every link.
"""

from __future__ import annotations

import math
from itertools import combinations

from tutti.graph import find_links
from tutti.lab.topology_layout import Layout, Point, find_children, is_line, lay_out, walk_down
from tutti.topologies.base import Topology, find_parents

_MOST_DRAWN, _MOST_MARKED = 32, 72  # workers
_APART, _LEAST_EXTENT = 11.0, 44.0  # dots between neighbours, and across the whole drawing
_STUB = 6.0  # dots of a link that goes round the back
_LINE_WIDTH = 76
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))  # of a braille letter, by column and row


def draw_text(topology: Topology, workers: int, step: int = 0, part: int = 0) -> str:
    layout = lay_out(topology, workers, step, part)
    if layout.tree:
        parents = find_parents(topology, workers, part)
        return _draw_line(parents) if is_line(parents) else _draw_tree(parents)
    if workers <= _MOST_DRAWN:
        return _draw_points(layout)
    if workers <= _MOST_MARKED:
        return _draw_marks(topology, workers, step, part)
    return f"{workers} workers are too many to draw here; --png FILE draws them"


# --- trees -----------------------------------------------------------------------------------------------------------


def _draw_line(parents: list[int]) -> str:
    names = [str(worker) for worker, _ in walk_down(parents)]
    lines = [names[0]]
    for name in names[1:]:
        if len(lines[-1]) + len(name) + 6 > _LINE_WIDTH:
            lines[-1] += " ──"
            lines.append(f"── {name}")
        else:
            lines[-1] += f" ── {name}"
    return "\n".join(lines)


def _draw_tree(parents: list[int]) -> str:
    """A worker per line; a branch comes down from everybody who has another child below."""
    children = find_children(parents)
    last = {worker for below in children.values() for worker in below[-1:]}
    lines, stems = [], [""]
    for worker, level in walk_down(parents):
        stem = stems[level]
        branch = "" if level == 0 else "└── " if worker in last else "├── "
        lines.append(f"{stem}{branch}{worker}")
        below = "" if level == 0 else "    " if worker in last else "│   "
        stems[level + 1 :] = [stem + below]
    return "\n".join(lines)


# --- points and lines ------------------------------------------------------------------------------------------------


def _draw_points(layout: Layout) -> str:
    points = _scale(layout.points)
    canvas = _Canvas()
    for link in layout.links:
        one, other = points[link[0]], points[link[1]]
        if link in layout.wraps:
            canvas.line(one, _behind(one, other))
            canvas.line(other, _behind(other, one))
        else:
            canvas.line(one, other)
    for worker, point in enumerate(points):
        canvas.write(point, str(worker))
    return canvas.text()


def _scale(points: list[Point]) -> list[Point]:
    """In dots, y downwards: neighbours far enough apart for their numbers, everything large enough to see, and every
    point in the middle of a letter."""
    nearest = min((math.dist(one, other) for one, other in combinations(points, 2)), default=1.0)
    extent = max(max(values) - min(values) for values in zip(*points, strict=True)) or 1.0
    scale = max(_APART / nearest, _LEAST_EXTENT / extent)
    return [(2.0 * round(x * scale / 2), 4.0 * round(-y * scale / 4) + 1) for x, y in points]


def _behind(one: Point, other: Point) -> Point:
    """A little away from `other`."""
    share = _STUB / math.dist(one, other)
    return one[0] - share * (other[0] - one[0]), one[1] - share * (other[1] - one[1])


class _Canvas:
    """Braille letters, each with two by four dots, and words on top of them; as large as what is drawn."""

    def __init__(self) -> None:
        self._letters: dict[tuple[int, int], str] = {}  # by row and column

    def line(self, start: Point, end: Point) -> None:
        dots = max(1, round(math.dist(start, end)))
        for at in range(dots + 1):
            self._dot(*(a + (b - a) * at / dots for a, b in zip(start, end, strict=True)))

    def _dot(self, x: float, y: float) -> None:
        column, row = round(x), round(y)
        place = (row // 4, column // 2)
        drawn = ord(self._letters.get(place, "\u2800"))
        self._letters[place] = chr(drawn | _DOTS[column % 2][row % 4])

    def write(self, point: Point, word: str) -> None:
        """A word around a point, with a blank on both sides."""
        row, column = round(point[1]) // 4, round(point[0]) // 2 - len(word) // 2 - 1
        for at, letter in enumerate(f" {word} "):
            self._letters[row, column + at] = letter

    def text(self) -> str:
        rows, columns = zip(*self._letters, strict=True)
        lines = [
            "".join(self._letters.get((row, column), " ") for column in range(min(columns), max(columns) + 1))
            for row in range(min(rows), max(rows) + 1)
        ]
        return "\n".join(line.rstrip() for line in lines)


# --- marks -----------------------------------------------------------------------------------------------------------


def _draw_marks(topology: Topology, workers: int, step: int, part: int) -> str:
    """A row for everybody who sends, a column for everybody who receives."""
    links = find_links(topology, workers, step, part)
    width = len(str(workers - 1))
    numbers = "".join(f"{worker:<10}" for worker in range(0, workers, 10))
    rows = [
        f"{worker:>{width}}  " + "".join("●" if mark else "·" for mark in links[worker]) for worker in range(workers)
    ]
    return "\n".join([f"{'':>{width}}  {numbers}".rstrip(), *rows])
