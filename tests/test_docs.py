"""The documents are true: their links lead somewhere, their commands parse, their examples run."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def each_document() -> pytest.MarkDecorator:
    return pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


def tutti_commands(text: str) -> list[str]:
    """Every `tutti ...` command in a shell block or alone in a code span."""
    lines = [line for block in blocks(text, "(?:sh|bash|console)?") for line in block.splitlines()]
    lines += [line for line in re.findall(r"`(tutti [^`\n]+)`", text) if "," not in line or '"' in line]
    commands = [line.strip().removeprefix("$ ").partition("  #")[0].strip() for line in lines]
    return [command for command in commands if command.startswith("tutti ") and "--help" not in command]


def is_a_name(command: str) -> bool:
    """`tutti net clean` in a sentence: the name of a command, perhaps without what it needs."""
    return re.fullmatch(r"tutti( [a-z]+){1,2}", command) is not None


@each_document()
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", document.read_text()):
        if "://" not in target:
            assert (document.parent / target).exists(), f"{document.name} links to {target}"


@each_document()
def test_files_named_in_code_spans_exist(document: Path) -> None:
    for span in re.findall(r"`([\w./]+/[\w./]*\.(?:py|md|toml|png))`", document.read_text()):
        places = [ROOT / span, ROOT / "src" / "tutti" / span, ROOT / "docs" / span]
        example = "largest.py" in span or span.startswith("mine/")
        assert example or any(place.exists() for place in places), f"{document.name} names {span}"


@each_document()
def test_commands_parse(document: Path) -> None:
    from tutti.algorithms.base import Algorithm
    from tutti.cli import make_parser
    from tutti.models.base import Model
    from tutti.networks.base import Network
    from tutti.spec import parse
    from tutti.tasks.base import Task

    for command in tutti_commands(document.read_text()):
        words = shlex.split(command)[1:]
        if is_a_name(command):
            assert importlib.util.find_spec(f"tutti.commands.{words[0]}") or words[0] == "compare", command
            continue
        args = make_parser().parse_args(words)
        for spec in getattr(args, "specs", None) or []:
            if spec not in ("SPEC",) and not spec.startswith("@"):
                parse(spec, Algorithm)
        if hasattr(args, "network"):
            parse(args.network, Network)
        if hasattr(args, "task"):
            if not args.task.startswith("mine."):
                parse(args.task, Task)
            if args.model:
                parse(args.model, Model)


def test_the_readmes_diff_runs(tmp_path: Path) -> None:
    """The loop after the change, on two real workers."""
    (diff,) = blocks((ROOT / "README.md").read_text(), "diff")
    kept = [line for line in diff.splitlines() if not line.startswith("-")]
    added = [line for line in diff.splitlines() if line.startswith("+")]
    assert len(added) == 3, "the README promises three lines"
    script = tmp_path / "loop.py"
    script.write_text("\n".join(line[1:] if line[:1] in "+ " else line for line in kept))
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment)
    assert done.returncode == 0, done.stderr


def test_the_example_of_adding_md_works(tmp_path: Path) -> None:
    """Added as the document says, found by its name, refused on the ring, and trained with on the star."""
    import torch
    from torch import nn

    from tutti.comm.threads import World
    from tutti.engine import distribute
    from tutti.errors import UserError

    (source,) = blocks((ROOT / "docs" / "adding.md").read_text(), "python")
    (tmp_path / "largest.py").write_text(source)
    package = importlib.import_module("tutti.aggregators")
    package.__path__.append(str(tmp_path))
    try:
        for route, works in (("star", True), ("ring", False)):
            model = nn.Linear(3, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            spec = f"gradient-average(all-reduce({route}, largest))"
            comm = World(1).comm(0)
            if not works:
                with pytest.raises(UserError, match="needs whole contributions"):
                    distribute(model, optimizer, spec, comm=comm)
                continue
            with distribute(model, optimizer, spec, comm=comm) as run:
                run.model(torch.ones(2, 3)).sum().backward()
                run.step()
            assert model.weight.isfinite().all()
    finally:
        package.__path__.remove(str(tmp_path))
        sys.modules.pop("tutti.aggregators.largest", None)
