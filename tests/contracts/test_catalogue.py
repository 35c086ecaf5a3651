"""Every member found has what the catalogue needs, and what its docstring says in formulas is what it does."""

from __future__ import annotations

import math
import re

import pytest

from tutti.collectives.base import Collective
from tutti.lab.catalogue import PRESETS_AXIS, TRAITS, Page, find_axes, find_traits, read_page
from tutti.presets import PRESETS
from tutti.spec import Member, names, parse

BASES = {base.axis: base for base in find_axes()}
MEMBERS = [(axis, name) for axis, base in BASES.items() for name in names(base.axis)]
WITH_A_RULE = {"algorithms", "exchanges", "collectives", "aggregators"}
WITH_A_PAPER = {"algorithms", "collectives", "models", "tasks"}
# members of these axes that no paper describes: plain training, what MPI or a backend has always had, made-up data
WITHOUT_A_PAPER = {
    ("algorithms", "single"),
    ("collectives", "native"),
    ("collectives", "all-gather"),
    ("collectives", "direct"),
    ("collectives", "auto"),
    ("tasks", "synthetic"),
}
LONGEST_SUMMARY = 150
PAPER = re.compile(r'[^"]+, "[^"]+" \((19|20)\d\d\)(, [^";]+)?')


@pytest.fixture(scope="module", params=MEMBERS, ids="/".join)
def found(request: pytest.FixtureRequest) -> Member:
    axis, name = request.param
    return parse(name, BASES[axis])


@pytest.fixture(scope="module")
def page(found: Member) -> Page:
    return read_page(found)


def test_there_are_members_on_every_axis() -> None:
    assert {"algorithms", "exchanges", "collectives", "aggregators", "models", "tasks"} <= set(BASES)
    assert {axis for axis, _ in MEMBERS} == set(BASES)


def test_its_first_sentence_fits_a_table(page: Page) -> None:
    assert page.summary.endswith(".")
    assert 10 < len(page.summary) <= LONGEST_SUMMARY
    assert "Paper" not in page.summary


def test_it_has_a_rule_where_its_axis_computes(page: Page) -> None:
    assert page.rule or page.axis not in WITH_A_RULE, f"indent the rule in the docstring of {page.file}"


def test_its_papers_are_cited_in_full(page: Page) -> None:
    for paper in page.papers:
        assert PAPER.fullmatch(paper), f'{page.file}: write Paper: Authors, "Title" (year)., not {paper}'
    assert "Paper:" not in page.text, f"{page.file}: Paper: begins a paragraph of its own"


def test_it_cites_a_paper_or_is_known_to_have_none(page: Page) -> None:
    expected = page.axis in WITH_A_PAPER and (page.axis, page.name) not in WITHOUT_A_PAPER
    assert bool(page.papers) or not expected, f"{page.file} has no Paper: line"


def test_the_list_of_those_without_a_paper_is_short_and_true() -> None:
    assert set(MEMBERS) >= WITHOUT_A_PAPER
    assert not [pair for pair in WITHOUT_A_PAPER if read_page(parse(pair[1], BASES[pair[0]])).papers]


def test_its_example_reads_back(found: Member, page: Page) -> None:
    assert parse(page.spec, BASES[page.axis]) == found


def test_its_defaults_can_be_typed(found: Member, page: Page) -> None:
    """Each as it is shown, by name, and all of them together."""
    texts = [f"{each.name}={each.default}" for each in page.parameters]
    for text in [*texts, ", ".join(texts)]:
        assert parse(f"{page.name}({text})" if text else page.name, BASES[page.axis]) == found


@pytest.mark.parametrize("axis", BASES)
def test_every_trait_of_an_axis_has_words(axis: str) -> None:
    for trait in find_traits(BASES[axis]):
        assert trait in TRAITS, f"say in lab/catalogue.py what '{trait}' of {axis} means"


def test_its_traits_have_words(found: Member) -> None:
    for trait in find_traits(type(found)):
        words, value = TRAITS[trait], getattr(found, trait, None)
        assert isinstance(words, str) or value in words, f"say in lab/catalogue.py what {trait} = {value} means"


def test_every_preset_is_an_algorithm_and_parses() -> None:
    assert PRESETS_AXIS not in BASES
    for spec in PRESETS.values():
        assert parse(spec, BASES["algorithms"]).name in names("algorithms")


# --- formulas ---------------------------------------------------------------------------------------------------------


def evaluate(formula: str, n: int) -> float:
    """2(n-1)/n as it stands in a docstring: side by side is times, except behind a function's name."""
    words: list[str] = []
    for word in re.findall(r"[\d.]+|[a-z]\w*|\S", formula):
        if words and re.fullmatch(r"[\d.]+|n|\)", words[-1]) and re.match(r"[a-z(]", word):
            words.append("*")
        words.append(word)
    functions = {"log2": math.log2, "ceil": math.ceil, "floor": math.floor, "min": min, "max": max}
    return float(eval("".join(words), {"__builtins__": {}, "n": n, **functions}))


def test_formulas_are_read_as_written() -> None:
    assert evaluate("2(n-1)/n", 4) == 1.5
    assert evaluate("2ceil(log2(n))", 5) == 6
    assert evaluate("min(3,floor(n/2))", 5) == 2
    assert evaluate("n(n-1)", 3) == 6


# whose bytes are the backend's affair or another route's; whose bytes have a formula for powers of two only
WITHOUT_FORMULAS = {"native", "auto"}
POWERS_OF_TWO = {"halving-doubling"}


@pytest.mark.parametrize("name", [name for name in names("collectives") if name not in WITHOUT_FORMULAS])
@pytest.mark.parametrize("size", [2, 3, 4, 5, 8])
def test_a_routes_formulas_are_its_cost(name: str, size: int) -> None:
    route = parse(name, Collective)
    rule = read_page(route).rule
    cost, nbytes = route.cost(size, 840), 840
    rounds = re.search(r"rounds (\S+),", rule)
    each = re.search(r"bytes .*?(\S+) \* S", rule)
    total = re.search(r"total (\S+) \* S", rule)
    assert rounds, f"collectives/{name}: write 'rounds FORMULA, bytes ... FORMULA * S'"
    assert each, f"collectives/{name}: write 'rounds FORMULA, bytes ... FORMULA * S'"
    assert cost.rounds == evaluate(rounds[1], size)
    if name not in POWERS_OF_TWO or size.bit_count() == 1:
        assert cost.busiest == pytest.approx(evaluate(each[1], size) * nbytes)
    assert total is None or cost.total == pytest.approx(evaluate(total[1], size) * nbytes)
