"""A docstring taken apart into what a member is, its rule and its papers; docs/adding.md says what it looks like."""

from __future__ import annotations

import ast
import importlib
import inspect
import itertools
import re
import textwrap
from dataclasses import dataclass


@dataclass(frozen=True)
class Words:
    """A docstring, taken apart."""

    summary: str
    text: str
    rule: str
    papers: tuple[str, ...]


_PAPER = re.compile(r"^Paper: (.+?)(?:\n[ \t]*\n|\Z)", flags=re.MULTILINE | re.DOTALL)
_SENTENCE = re.compile(r".+?[.](?=\s|$)")


def read_words(module: str) -> Words:
    """From the source, as an interpreter may strip docstrings or their indentation."""
    source = inspect.getsource(importlib.import_module(module))
    return take_apart(ast.get_docstring(ast.parse(source), clean=False) or "")


def take_apart(docstring: str) -> Words:
    papers = tuple(paper for found in _PAPER.findall(docstring) for paper in _split_papers(found))
    blocks = _blocks(_PAPER.sub("", docstring))
    first = blocks[0] if blocks else ""
    sentence = _SENTENCE.match(first)
    rule = "\n".join(textwrap.dedent(block) for block in blocks if is_rule(block))
    return Words(sentence[0] if sentence else first, "\n\n".join(blocks), rule, papers)


def _split_papers(found: str) -> list[str]:
    """At semicolons that no title holds."""
    return re.split(r';\s*(?=(?:[^"]*"[^"]*")*[^"]*$)', " ".join(found.split()).removesuffix("."))


def _blocks(text: str) -> list[str]:
    """Paragraphs on one line each, and indented lines as they stand."""
    blocks = []
    for kind, group in itertools.groupby(text.splitlines(), lambda line: "" if not line.strip() else line[0] == " "):
        lines = list(group)
        if kind != "":
            blocks.append("\n".join(line.rstrip() for line in lines) if kind else " ".join(" ".join(lines).split()))
    return blocks


def is_rule(block: str) -> bool:
    return block.startswith(" ")


def shorten_paper(paper: str) -> str:
    """Authors and year: `Patarasuk and Yuan 2009`."""
    authors = re.split(r", | and ", paper.partition(', "')[0])
    year = re.search(r'" \((\d{4})\)', paper)
    said = f"{authors[0]} et al." if len(authors) > 2 else " and ".join(authors)
    return f"{said} {year[1]}" if year else said
