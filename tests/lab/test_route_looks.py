"""A route has its colour whatever stands beside it, and no two lines of a picture look alike."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest

from tutti.lab.route_looks import find_looks
from tutti.lab.routes import read_routes

EVERY = [route.name for route in read_routes(["all"])]


def test_all_routes_in_one_picture_can_be_told_apart() -> None:
    assert_distinct(find_looks(EVERY))


@pytest.mark.parametrize("name", EVERY)
def test_a_route_alone_looks_as_among_all_the_others(name: str) -> None:
    assert find_looks([name])[name] == find_looks(EVERY)[name] == find_looks(reversed(EVERY))[name]


def test_a_spec_has_the_colour_of_its_route() -> None:
    names = ["ring(segment=1MiB)", "ring", "ring(segment=4MiB)", "tree(chain)", "tree"]
    looks = find_looks(names)
    assert len({looks[name]["color"] for name in names[:3]}) == 1
    assert looks["tree(chain)"]["color"] == looks["tree"]["color"]
    assert looks["ring"] == find_looks(["ring"])["ring"]
    assert_distinct(looks)


def test_a_route_of_somebody_elses_has_a_colour_too() -> None:
    alone = find_looks(["snail"])["snail"]
    among = find_looks([*EVERY, "snail", "slug", "slug(slow=true)"])
    assert among["snail"]["color"] == alone["color"]
    assert among["slug"]["color"] == among["slug(slow=true)"]["color"]
    assert_distinct(among)


def assert_distinct(looks: dict[str, dict[str, Any]]) -> None:
    for one, other in combinations(looks, 2):
        assert looks[one] != looks[other], f"{one} and {other} look alike"
