"""The links that you write down: `edge-list(0-1-2+1-3)`, or a file with one link per line.

    edges := way { "+" way },    way := worker "-" worker { "-" worker }

A file has two workers in each line, with a blank, comma or dash between them; what follows a # is not read. Its links
become the text of the spec, so that neither another worker nor a record needs the file. A link goes both ways, and is
one link however often it is named. Workers are numbered from 0 without a gap, and everybody must be connected.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

from tutti.errors import UserError
from tutti.files import name_problem, read_text
from tutti.topologies.base import Topology, find_unreached

_WORKER = r"[0-9]{1,18}"
_TEXT = re.compile(rf"{_WORKER}(-{_WORKER})+(\+{_WORKER}(-{_WORKER})+)*")
_LINE = re.compile(rf"\s*({_WORKER})[\s,-]+({_WORKER})\s*")
_LINKS_LIMIT = 1 << 17  # characters: as a part of a spec, which has a limit of its own


@dataclass
class EdgeList(Topology):
    edges: str = "0-1"

    example: ClassVar[str] = "edge-list(0-1-2+1-3)"

    def __post_init__(self) -> None:
        if not _TEXT.fullmatch(self.edges):
            self.edges = _read(self.edges)
        links = _links(self.edges)
        for one, other in links:
            if one == other:
                raise ValueError(
                    f"edges of 'edge-list' link worker {one} with itself: a link is between two, such as 0-1"
                )
        missing = _find_gap({worker for link in links for worker in link})
        if missing is not None:
            numbered = "workers are numbered from 0 without a gap"
            raise ValueError(
                f"edges of 'edge-list' have no link for worker {missing}, and {numbered}: add one or renumber"
            )

    def check(self, workers: int) -> None:
        if workers == 1:
            return
        named = max(max(link) for link in _links(self.edges)) + 1
        if named != workers:
            raise UserError(f"'{self}' names workers 0 to {named - 1}: it needs {named} workers, not {workers}")
        apart = find_unreached([self.peers(rank, workers) for rank in range(workers)])
        if apart is not None:
            raise UserError(f"'{self}' has no way from worker 0 to worker {apart}: add a link, such as 0-{apart}")

    def peers(self, rank: int, size: int, step: int = 0, part: int = 0) -> list[int]:
        if size == 1:
            return []
        return sorted({other for link in _links(self.edges) for one, other in (link, link[::-1]) if one == rank})


@lru_cache(maxsize=64)
def _links(edges: str) -> list[tuple[int, int]]:
    ways = [[int(worker) for worker in way.split("-")] for way in edges.split("+")]
    return [link for way in ways for link in pairwise(way)]


def _find_gap(workers: set[int]) -> int | None:
    """The first number that is left out."""
    return next((number for number, worker in enumerate(sorted(workers)) if number != worker), None)


def _read(path: str) -> str:
    """The links of a file, as they are typed."""
    try:
        lines = read_text(Path(path)).splitlines()
    except (OSError, ValueError) as error:
        wanted = "neither links such as 0-1-2+1-3 nor a text file with one link per line"
        reason = "" if isinstance(error, ValueError | FileNotFoundError) else f" ({name_problem(error)})"
        raise ValueError(f"edges of 'edge-list' are {wanted}: '{_shorten(path)}'{reason}") from None
    links = []
    for number, line in enumerate(lines, start=1):
        said = line.partition("#")[0]
        if said.strip():
            links.append(_read_line(said, f"{path}, line {number}"))
    if not links:
        raise ValueError(f"{path} holds no link: write two workers in each line, such as 0 1")
    edges = "+".join(links)
    if len(edges) > _LINKS_LIMIT:
        raise ValueError(f"{path} holds {len(links):,} links, more than a spec can: at most about 20,000")
    return edges


def _shorten(path: str) -> str:
    return path if len(path) <= 200 else f"{path[:100]}…{path[-100:]}"


def _read_line(line: str, where: str) -> str:
    match = _LINE.fullmatch(line)
    if match is None:
        raise ValueError(f"{where}: a link is two workers, such as 0 1, not '{_shorten(line.strip())}'")
    return f"{match[1]}-{match[2]}"
