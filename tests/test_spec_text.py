"""The text of a spec: words and parentheses with their places, and what is no spec."""

from __future__ import annotations

import pytest

from tutti.errors import UserError
from tutti.spec_text import Node, SpecError, parse_nodes


def write(node: Node) -> str:
    """A node with all its parentheses."""
    args = [f"{key.word}={write(value)}" if key else write(value) for key, value in node.args]
    return f"{node.word}({', '.join(args)})"


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("ddp", "ddp()"),
        ("ddp()", "ddp()"),
        (" ddp ( bucket = 1MiB ) ", "ddp(bucket=1MiB())"),
        ("a(b(c), d=e(f))", "a(b(c()), d=e(f()))"),
        ("a:b:c", "a(b(c()))"),
        ("a:b(c, d)", "a(b(c(), d()))"),
        ("a(b:c, 1-2+3)", "a(b(c()), 1-2+3())"),
    ],
)
def test_words_and_parentheses(text: str, read: str) -> None:
    assert write(parse_nodes(text)) == read


@pytest.mark.parametrize("text", ["b", "b()", "b( c )", "b(c, d=e(f))", "b:c", "b:c(d)"])
def test_a_node_knows_its_place_and_how_far_its_arguments_go(text: str) -> None:
    """Also with something in front of it and behind."""
    whole = f"a(x,  {text}  , y)"
    node = parse_nodes(whole).args[1][1]
    assert whole[node.start : node.end] == "b"
    assert whole[node.start : node.whole] == text


@pytest.mark.parametrize(
    ("marked", "message"),
    [
        ("«»", "found the end where a name or a number should stand"),
        ("«»   ", "found the end"),
        ("gradient-average(«»", "found the end where a name or a number should stand"),
        ("gradient-average(all-reduce«»", "found the end where ',' or ')' should stand"),
        ("gradient-average(all-reduce(ring)«»  ", "found the end where ',' or ')' should stand"),
        ("ddp«)»", "found ')' where nothing more should stand"),
        ("ddp() «ring»", "found 'ring' where nothing more should stand"),
        ("ddp «ring»", "found 'ring' where nothing more should stand"),
        ("ddp«,» ring", "found ',' where nothing more should stand"),
        ("ddp(bucket=1MiB)«:»ring", "found ':' where nothing more should stand"),
        ("ddp(bucket=«)»", "found ')' where a name"),
        ("ddp:«»", "found the end where a name"),
        ("«:»ddp", "found ':' where a name"),
        ("«(»ddp)", "found '(' where a name"),
        ("gradient-average(«,» 1MiB)", "found ',' where a name"),
        ("gradient-average(all-reduce «1MiB»)", "found '1MiB' where ',' or ')' should stand"),
        ("gradient-average(all-reduce,«)»", "found ')' where a name"),
        ("ddp(«=»1)", "found '=' where a name"),
        ("ddp(«(»=1)", "found '(' where a name"),
    ],
)
def test_text_that_is_no_spec(marked: str, message: str) -> None:
    """The text between « and » is what the error points at."""
    text = marked.replace("«", "").replace("»", "")
    with pytest.raises(SpecError) as caught:
        parse_nodes(text)
    error = caught.value
    assert (error.start, error.end) == (marked.index("«"), marked.index("»") - 1)
    assert message in error.message


def test_the_error_shows_the_place() -> None:
    error = SpecError("too large", "ddp(bucket=large)", 11, 16)
    assert str(error).splitlines() == ["too large", "  ddp(bucket=large)", "             ^^^^^"]
    assert isinstance(error, UserError)
    assert str(SpecError("found the end", "ddp(", 4, 4)).splitlines()[-1] == "      ^"
