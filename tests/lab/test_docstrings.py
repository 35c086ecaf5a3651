"""Docstrings are taken apart as docs/adding.md says, whatever their lines and paragraphs look like."""

from __future__ import annotations

import pytest

from tutti.lab.docstrings import read_words, shorten_paper, take_apart

DOCSTRING = """What it is: one thing. More of it
goes on here.

Prose before
    a <- b     two lines that are
    b <- [c]   kept as they are
and behind.

Paper: Ant, Bee and Cat, "A title; with a sign" (1999);
Dog, "Another
title" (2001), for the rest.

    rounds 1

The end.
"""


def test_a_docstring_is_taken_apart() -> None:
    words = take_apart(DOCSTRING)
    assert words.summary == "What it is: one thing."
    assert words.papers == (
        'Ant, Bee and Cat, "A title; with a sign" (1999)',
        'Dog, "Another title" (2001), for the rest',
    )
    assert words.rule == "a <- b     two lines that are\nb <- [c]   kept as they are\nrounds 1"
    assert words.text.split("\n\n") == [
        "What it is: one thing. More of it goes on here.",
        "Prose before",
        "    a <- b     two lines that are\n    b <- [c]   kept as they are",
        "and behind.",
        "    rounds 1",
        "The end.",
    ]


def test_a_docstring_that_is_nothing_but_a_sentence_and_a_rule_keeps_its_indentation() -> None:
    """Which interpreters from 3.13 on, and inspect.cleandoc, would take away."""
    assert read_words("tutti.aggregators.mean").rule == "result = sum(x_i) / n"


@pytest.mark.parametrize("docstring", ["", "\n", "no sentence"])
def test_a_docstring_that_says_little(docstring: str) -> None:
    words = take_apart(docstring)
    assert (words.summary, words.rule, words.papers) == (docstring.strip(), "", ())


@pytest.mark.parametrize(
    ("paper", "short"),
    [
        ('Patarasuk and Yuan, "Bandwidth optimal" (2009)', "Patarasuk and Yuan 2009"),
        ('Wu, He, "Group normalization" (2018), for groups', "Wu and He 2018"),
        ('LeCun, Bottou, Bengio and Haffner, "Learning (1990)" (1998)', "LeCun et al. 1998"),
        ('Li et al., "PyTorch" (2020)', "Li et al. 2020"),
        ('Stich, "Local, and little" (2019)', "Stich 2019"),
        ("Nobody", "Nobody"),
    ],
)
def test_a_paper_in_short(paper: str, short: str) -> None:
    assert shorten_paper(paper) == short
