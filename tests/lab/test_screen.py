"""A terminal gets a bar and a line per run, anything else two plain lines per run, and a quiet screen nothing."""

from __future__ import annotations

import io
import sys
import threading
from typing import Any

import pytest
from fake_clock import FakeClock
from rich.console import Console
from sample_records import make_empty, make_record

from tutti.lab.screen import Screen

HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"
SPEC = "gradient-average(all-reduce(ring))"


def step(number: int, accuracy: float | None = None) -> dict[str, Any]:
    return {
        "event": "step",
        "step": number,
        "steps": 100,
        "seconds": 1.0,
        "step_seconds": 0.0123,
        "loss": 0.5,
        "accuracy": accuracy,
        "bytes_per_step": 370_302.0,
    }


def make_screen(terminal: bool, quiet: bool = False, width: int = 80) -> tuple[Screen, io.StringIO, FakeClock]:
    out, clock = io.StringIO(), FakeClock()
    environment = {"TERM": "xterm", "COLUMNS": str(width), "LINES": "24"}
    console = Console(file=out, force_terminal=terminal, width=width, _environ=environment)
    return Screen(quiet, console, clock), out, clock  # type: ignore[arg-type]


def text_of(screen: Screen, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, record=True, _environ={})
    console.print(screen.view())
    return [line.rstrip() for line in console.export_text().splitlines()]


def test_plain_lines_where_there_is_no_terminal() -> None:
    screen, out, _ = make_screen(terminal=False)
    with screen:
        screen.start("ddp", SPEC, 1, 2)
        screen.event({"event": "begin", "steps": 100})
        screen.event(step(50))
        screen.done(make_record())
        screen.start("ring", "ring", 2, 2)
        screen.failed("worker 1 raised ValueError: no")
    assert out.getvalue().splitlines() == [
        f"1/2 ddp  {SPEC}",
        "1/2 ddp  accuracy 97.0 %  10.0 ms/step  362 KiB/step  12.3 s",
        "2/2 ring",
        "2/2 ring  failed: worker 1 raised ValueError: no",
    ]


@pytest.mark.parametrize("width", [80, 120])
def test_the_bar_shows_how_far_it_is(width: int) -> None:
    screen, _, clock = make_screen(terminal=True, width=width)
    with screen:
        screen.start("ddp", SPEC, 3, 7)
        assert "starting the workers" in text_of(screen, width)[1]
        screen.event({"event": "begin", "steps": 100, "workers": 4, "parameters": 61_706})
        assert "0/100 steps" in text_of(screen, width)[1]
        clock.sleep(10.0)
        screen.event(step(20, accuracy=0.5))
        clock.sleep(3.0)
        screen.event(step(26))  # the accuracy stays the last one known
        title, bar, figures = text_of(screen, width)
    assert title == f"3/7 ddp  {SPEC}"
    assert bar.endswith("26/100 steps   37 s left")
    assert len(bar) == width
    assert figures == "loss 0.5000 · accuracy 50.0 % · 12.3 ms/step · 362 KiB/step"


def test_a_long_spec_takes_one_line() -> None:
    screen, _, _ = make_screen(terminal=True)
    with screen:
        screen.start("x" * 70, SPEC * 3, 1, 1)
        assert len(text_of(screen, 80)) == 3


def test_runs_that_are_over_stay_as_one_line() -> None:
    screen, out, _ = make_screen(terminal=True)
    with screen:
        screen.start("ddp", SPEC, 1, 3)
        screen.event(step(100))
        screen.done(make_record())
        assert screen.view() == ""
        screen.start("ring", "ring", 2, 3)
        screen.failed("worker 1 is gone")
        screen.done(make_record("kept-from-before"))
        screen.start("empty", "empty", 3, 3)
        screen.done(make_empty())
    text = out.getvalue()
    for words in ("accuracy 97.0 %", "10.0 ms/step", "362 KiB/step", "12.3 s", "failed: worker 1 is gone", "kept"):
        assert words in text
    assert text.count("✓") == 3
    assert text.count("✗") == 1


def test_quiet_is_silent() -> None:
    for terminal in (True, False):
        screen, out, _ = make_screen(terminal, quiet=True)
        with screen:
            screen.start("ddp", SPEC, 1, 2)
            screen.event(step(1))
            screen.done(make_record())
            screen.start("ring", "ring", 2, 2)
            screen.failed("worker 1 is gone")
        with pytest.raises(RuntimeError):
            break_off(screen, RuntimeError())
        assert out.getvalue() == ""


@pytest.mark.parametrize("error", [RuntimeError(), KeyboardInterrupt(), SystemExit()])
def test_the_terminal_is_restored_whatever_happens(error: BaseException) -> None:
    screen, out, _ = make_screen(terminal=True)
    before = sys.stdout, sys.stderr
    with pytest.raises(type(error)):
        break_off(screen, error, step(42))
    assert (sys.stdout, sys.stderr) == before
    assert out.getvalue().rindex(SHOW) > out.getvalue().rindex(HIDE)
    assert "stopped at step 42 of 100" in out.getvalue()


def test_a_run_that_never_began() -> None:
    screen, out, _ = make_screen(terminal=False)
    with pytest.raises(KeyboardInterrupt):
        break_off(screen, KeyboardInterrupt())
    assert out.getvalue().splitlines() == [f"1/1 ddp  {SPEC}", "1/1 ddp  stopped before its first step"]


def break_off(screen: Screen, error: BaseException, *events: dict[str, Any]) -> None:
    with screen:
        screen.start("ddp", SPEC, 1, 1)
        for event in events:
            screen.event(event)
        raise error


def test_standard_error_is_restored_when_nothing_can_be_written() -> None:
    screen, out, _ = make_screen(terminal=True)
    before = sys.stderr
    screen.__enter__()
    screen.start("ddp", SPEC, 1, 1)
    out.close()
    with pytest.raises(ValueError, match="closed file"):
        screen.__exit__(None, None, None)
    assert sys.stderr is before


def test_results_on_standard_output_are_not_touched() -> None:
    before = sys.stdout
    screen, _, _ = make_screen(terminal=True)
    with screen:
        assert sys.stdout is before


@pytest.mark.parametrize("terminal", [True, False])
def test_events_come_from_other_threads(terminal: bool) -> None:
    screen, out, _ = make_screen(terminal)

    def tell() -> None:
        for number in range(1, 101):
            screen.event(step(number))

    with screen:
        for index in range(1, 6):
            screen.start("ddp", SPEC, index, 5)
            threads = [threading.Thread(target=tell) for _ in range(4)]
            for thread in threads:
                thread.start()
            screen.done(make_record())  # while they go on
            for thread in threads:
                thread.join()
    assert out.getvalue().count("12.3 s") == 5


def test_a_late_event_is_not_heard() -> None:
    screen, _, _ = make_screen(terminal=True)
    with screen:
        screen.event(step(1))
        screen.failed("nobody runs")
        assert screen.view() == ""
