"""Messages: what a terminal would obey is escaped, and what is endless is cut."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from tutti.algorithms.base import Algorithm
from tutti.cli import main
from tutti.errors import RunFailed, UserError, printable, suggest
from tutti.spec import SpecError, parse


@pytest.mark.parametrize("kind", [UserError, RunFailed])
def test_control_characters_are_escaped(kind: type[Exception]) -> None:
    assert str(kind("no \x1b[2J, \x9b1m, \u202e or \udc80\nbut lines\tand é")) == (
        "no \\x1b[2J, \\x9b1m, \\u202e or \\udc80\nbut lines\tand é"
    )


def test_the_middle_of_a_long_text_is_left_out() -> None:
    assert printable("ab" * 1000, 20) == "ababababab [1,980 characters left out] ababababab"
    assert len(str(UserError("x" * 5_000_000))) < 10_000


def test_nothing_similar_is_looked_for_where_a_word_is_endless() -> None:
    assert suggest("rin" * 1_000_000, ["ring"], "there is help") == "; there is help"


def test_a_spec_of_megabytes_is_one_sentence() -> None:
    with pytest.raises(SpecError, match=r"a spec has at most 262,144 characters, and this one has 5,000,000") as caught:
        parse("x" * 5_000_000, Algorithm)
    assert len(str(caught.value)) < 300


def test_the_place_of_a_mistake_in_a_long_spec_is_shown_with_what_is_around_it() -> None:
    with pytest.raises(SpecError) as caught:
        parse(f"ddp(bucket=1MB, {'order' * 100}=x)", Algorithm)
    message, text, marks = str(caught.value).splitlines()
    assert len(message) < 1200
    assert len(text) < 400
    assert text[marks.index("^") :].startswith("orderorder")
    with pytest.raises(SpecError) as caught:
        parse("ddp(\x1b[31m=2)", Algorithm)
    assert "\x1b" not in str(caught.value)
    _, text, marks = str(caught.value).splitlines()
    assert text[marks.index("^") :].startswith(r"\x1b[31m=2")


def test_what_is_echoed_by_the_command_is_bounded_and_printable(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["run", "ddp\x1b]0;title\x07"], ["run", "d" * 300], ["explain", "ring", "--workers", "\x1b[31m"]):
        with suppress(SystemExit):
            assert main(words) == 2
        said = capsys.readouterr().err
        assert "\x1b" not in said
        assert len(said) < 2000


@pytest.mark.parametrize("option", ["--out", "--json", "--save", "--data", "--task", "--continue", "--tensorboard"])
def test_names_of_300_characters(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["run", *([] if option == "--continue" else ["single"]), "--steps", "1", "--engine", "threads"]
    words += ["--task", "mnist"] if option == "--data" else []
    assert main([*words, option, "n" * 300]) == 2
    said = capsys.readouterr().err
    assert said.startswith("tutti: ")
    assert said.count("\n") == (3 if option == "--task" else 1)  # a spec is shown with marks below it
