"""A line per point where nobody watches, a bar in a terminal, nothing when quiet."""

from __future__ import annotations

import io

from rich.console import Console

from tutti.lab.bench.progress import BenchProgress

POINT = {"event": "point", "op": "all-reduce", "dtype": "float32", "bytes": 4096}


def show(terminal: bool, quiet: bool) -> str:
    written = io.StringIO()
    console = Console(file=written, force_terminal=terminal, width=100)
    with BenchProgress(2, quiet, console) as progress:
        progress.start(4)
        progress.event(POINT)
        progress.event({**POINT, "bytes": 8192})
    return written.getvalue()


def test_lines_where_there_is_no_terminal() -> None:
    assert show(terminal=False, quiet=False).splitlines() == [
        "1/2 all-reduce float32 on 4 workers: 4.00 KiB",
        "2/2 all-reduce float32 on 4 workers: 8.00 KiB",
    ]


def test_a_bar_in_a_terminal() -> None:
    text = show(terminal=True, quiet=False)
    assert "all-reduce float32 on 4 workers: 8.00 KiB" in text
    assert "1/2" in text, "one is behind us, the other has begun"


def test_nothing_when_quiet() -> None:
    assert show(terminal=True, quiet=True) == show(terminal=False, quiet=True) == ""
