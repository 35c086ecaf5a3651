"""The text of a spec -> nodes: words, and what stands in parentheses behind them. What a word means, spec.py finds out.

spec  := word [ "(" [ arg { "," arg } ] ")" ]  |  word ":" spec        a:b:c is read as a(b(c))
arg   := [ word "=" ] spec
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from tutti.errors import UserError, printable

_LONGEST = 1 << 18  # characters of a spec; `edge-list` writes out all of its links
_SHOWN = 60  # characters before and after the place of a mistake


class SpecError(UserError):
    """A spec that cannot be read, with the place in its text."""

    def __init__(self, message: str, text: str, start: int, end: int) -> None:
        self.message, self.text, self.start, self.end = message, text, start, end
        before, wrong, after = _cut(text, start, end)
        marks = f"{' ' * len(before)}{'^' * max(1, len(wrong))}"
        super().__init__(f"{printable(message, 1000)}\n  {before}{wrong}{after}\n  {marks}")


def _cut(text: str, start: int, end: int) -> tuple[str, str, str]:
    """The text before the mistake, the mistake and the text after it, on one line, each cut where it is long."""
    before, wrong, after = (_on_one_line(part) for part in (text[:start][-4 * _SHOWN :], text[start:end], text[end:]))
    if start + len(wrong) + len(after) <= 4 * _SHOWN:
        return before, wrong, after
    cut = "…"
    before = before if len(before) <= _SHOWN else cut + before[-_SHOWN:]
    wrong = wrong if len(wrong) <= 2 * _SHOWN else wrong[:_SHOWN] + cut + wrong[-_SHOWN:]
    return before, wrong, after if len(after) <= _SHOWN else after[:_SHOWN] + cut


def _on_one_line(text: str) -> str:
    return printable(text, 4 * _LONGEST).translate({ord("\n"): " ", ord("\t"): " "})


@dataclass(frozen=True)
class Node:
    """A word with its place in the text, and what stands in parentheses behind it, up to `whole`."""

    word: str
    args: tuple[tuple[Node | None, Node], ...]  # the key, where there is one, and the value
    start: int
    end: int
    whole: int


_TOKEN = re.compile(r"\s*(?:([(),=:])|([^(),=:\s]+))")


def parse_nodes(text: str) -> Node:
    if len(text) > _LONGEST:
        message = f"a spec has at most {_LONGEST:,} characters, and this one has {len(text):,}"
        raise SpecError(message, text[:_SHOWN] + "…", 0, 0)
    tokens: list[tuple[str, int]] = []
    position = 0
    while match := _TOKEN.match(text, position):
        tokens.append((match[1] or match[2], match.start(1) if match[1] else match.start(2)))
        position = match.end()
    tokens.append(("", len(text.rstrip())))
    node, after = _node(text, tokens, 0)
    if tokens[after][0]:
        raise _unexpected(text, tokens[after], "nothing more")
    return node


def _node(text: str, tokens: list[tuple[str, int]], at: int) -> tuple[Node, int]:
    name = _word(text, tokens, at)
    mark = tokens[at + 1][0]
    if mark == ":":
        inner, at = _node(text, tokens, at + 2)
        return replace(name, args=((None, inner),), whole=inner.whole), at
    if mark != "(":
        return name, at + 1
    args, at = _args(text, tokens, at + 2)
    return replace(name, args=args, whole=tokens[at - 1][1] + 1), at


def _args(text: str, tokens: list[tuple[str, int]], at: int) -> tuple[tuple[tuple[Node | None, Node], ...], int]:
    """What stands in parentheses, the closing one included."""
    args: list[tuple[Node | None, Node]] = []
    if tokens[at][0] == ")":
        return (), at + 1
    while True:
        key = _word(text, tokens, at) if tokens[at][0] and tokens[at + 1][0] == "=" else None
        value, at = _node(text, tokens, at if key is None else at + 2)
        args.append((key, value))
        if tokens[at][0] == ")":
            return tuple(args), at + 1
        if tokens[at][0] != ",":
            raise _unexpected(text, tokens[at], "',' or ')'")
        at += 1


def _word(text: str, tokens: list[tuple[str, int]], at: int) -> Node:
    word, start = tokens[at]
    if word in ("", "(", ")", ",", "=", ":"):
        raise _unexpected(text, tokens[at], "a name or a number")
    end = start + len(word)
    return Node(word, (), start, end, end)


def _unexpected(text: str, token: tuple[str, int], wanted: str) -> SpecError:
    word, at = token
    found = f"'{word}'" if word else "the end"
    return SpecError(f"found {found} where {wanted} should stand", text, at, at + len(word))
