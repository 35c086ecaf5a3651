"""Who may import whom, read from the source: the rooms of docs/design.md, proved."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "tutti"

# room -> the rooms it may know, beside itself (members of an axis know only their own base)
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "clock": set(),
    "files": set(),
    "machine": set(),
    "presets": set(),
    "layout": set(),
    "spec_text": {"errors"},
    "spec": {"errors", "presets", "spec_text"},
    "comm": {"errors", "clock", "machine"},
    "failures": {"errors", "comm", "machine"},
    "channel": set(),
    "fork_server": {"errors", "machine"},
    "launcher_store": {"clock", "channel"},
    "aggregators": {"spec", "errors"},
    "topologies": {"spec", "errors", "files"},
    "graph": {"errors", "topologies"},
    "collectives": {"spec", "errors", "files", "machine", "comm", "topologies"},
    "exchanges": {"spec", "errors", "layout", "comm", "topologies", "graph", "collectives", "aggregators"},
    "hooks": set(),
    "optimizers": {"errors", "hooks"},
    "changes": {"errors", "optimizers"},
    "spent": {"errors"},
    "replica": {"errors", "layout", "hooks", "optimizers", "changes", "spent"},
    "tuning": set(),
    "algorithms": {"spec", "errors", "exchanges", "replica", "comm", "tuning", "hooks", "optimizers"},
    "inputs": {"spec", "errors", "algorithms"},
    "consensus": {"errors", "algorithms", "comm", "replica"},
    "join": {"errors", "algorithms", "comm", "replica", "consensus", "optimizers"},
    "engine": {
        "errors",
        "changes",
        "algorithms",
        "comm",
        "replica",
        "consensus",
        "hooks",
        "inputs",
        "optimizers",
        "join",
        "checkpoint",
        "checkpoint_state",
        "buffers",
        "first_batch",
        "foreign_steps",
        "guard",
        "operations",
        "setup_check",
        "watch",
    },
    "buffers": {"comm", "consensus"},
    "first_batch": {"comm", "hooks"},
    "foreign_steps": {"errors", "hooks", "optimizers"},
    "operations": {"clock"},
    "checksum": set(),
    "setup_check": {"spec", "errors", "algorithms", "comm", "optimizers", "presets"},
    "watch": {"errors", "clock", "comm", "operations"},
    "guard": {"errors", "algorithms", "comm", "replica", "checksum", "operations", "watch"},
    "sampling": {"errors", "data"},
    "checkpoint_folder": {"errors", "clock", "files"},
    "checkpoint_state": {"errors"},
    "checkpoint": {"errors", "algorithms", "comm", "replica", "checkpoint_folder", "checkpoint_state"},
    "models": {"spec", "errors"},
    "partitions": {"spec", "errors"},
    "data": {"files", "spec", "errors", "machine", "partitions", "comm"},
    "tasks": {"spec", "errors", "clock", "data"},
    "launch_options": {"errors", "comm", "machine", "networks"},
    "worker": {
        "errors",
        "clock",
        "comm",
        "channel",
        "failures",
        "launch_options",
        "launcher_store",
        "machine",
        "networks",
    },
    "worker_processes": {
        "errors",
        "clock",
        "comm",
        "channel",
        "failures",
        "fork_server",
        "launch_options",
        "launcher_store",
        "worker",
    },
    "launch": {"errors", "clock", "comm", "failures", "launch_options", "worker", "worker_processes"},
    "stopwatch": {"comm", "engine"},
    "resuming": {"errors", "checkpoint_folder", "comm", "engine", "stopwatch"},
    "train": {
        "files",
        "resuming",
        "spec",
        "errors",
        "comm",
        "engine",
        "models",
        "tasks",
        "partitions",
        "sampling",
        "stopwatch",
    },
    "hosts": {"errors", "clock"},
    "networks": {"spec", "errors", "machine", "hosts"},
    "lab": {"*"},
    "commands": {"*"},
    "cli": {"*"},
    "__init__": {"*"},
    "__main__": {"cli"},
}
# what lies above may be imported by nobody below
TOP = {"lab", "commands", "cli"}
THIRD_PARTY_BELOW_LAB = {"torch", "numpy", "tutti"}
OPTIONAL = {("tasks", "sklearn")}  # inside load() only, with a sentence when it is missing
AXES = (
    "aggregators",
    "topologies",
    "collectives",
    "exchanges",
    "algorithms",
    "models",
    "tasks",
    "partitions",
    "networks",
)
# what is handed in is known by its base
BASES_ONLY = {
    "algorithms": {"exchanges": "base", "comm": "base"},
    "launch_options": {"networks": "base"},
    "worker": {"networks": "base"},
    "data": {"partitions": "base"},
    "train": {"partitions": "base"},
}

FILES = sorted(SOURCE.rglob("*.py"))


def room_of(path: Path) -> str:
    first = path.relative_to(SOURCE).parts[0]
    return first.removesuffix(".py")


def imports(path: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are written in full"
            found.append(node.module or "")
    return found


def test_every_room_is_listed() -> None:
    assert {room_of(path) for path in FILES} == set(ALLOWED)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_follow_the_rooms(path: Path) -> None:
    room = room_of(path)
    for name in imports(path):
        parts = name.split(".")
        if parts[0] != "tutti" or len(parts) == 1:
            continue
        target = parts[1]
        if target == room or "*" in ALLOWED[room]:
            continue
        assert target in ALLOWED[room], f"{path} must not import {name}"
        base = BASES_ONLY.get(room, {}).get(target)
        assert base is None or parts[2:] == [base], f"{path} may know only the base of {target}"


@pytest.mark.parametrize("axis", AXES)
def test_members_do_not_import_each_other(axis: str) -> None:
    for path in (SOURCE / axis).glob("*.py"):
        others = [n for n in imports(path) if n.startswith(f"tutti.{axis}.") and n != f"tutti.{axis}.base"]
        assert not others, f"{path} imports {others}"


def test_below_the_lab_only_torch_and_numpy() -> None:
    for path in FILES:
        if room_of(path) in TOP:
            continue
        for name in imports(path):
            top = name.partition(".")[0]
            known = top in sys.stdlib_module_names or top in THIRD_PARTY_BELOW_LAB
            assert known or (room_of(path), top) in OPTIONAL, f"{path} imports {name}"


def test_only_the_clock_knows_the_time() -> None:
    for path in FILES:
        if "time" in imports(path):
            assert path == SOURCE / "clock.py", f"{path} imports time: use tutti.clock"


def test_there_is_no_utils() -> None:
    assert not [path for path in FILES if "util" in path.stem]
