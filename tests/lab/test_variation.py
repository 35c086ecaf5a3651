"""Parameters by name: found at any depth, replaced without touching anything else, and listed where there is none."""

from __future__ import annotations

import dataclasses

import pytest

from tutti.errors import UserError
from tutti.lab.variation import change, has_parameter, make_slug, read_algorithm, split_list
from tutti.train import Plan

PLAN = Plan()


def test_an_algorithm_can_be_put_on_another_graph() -> None:
    assert read_algorithm("d-psgd") == "model-average(gossip(ring))"
    assert read_algorithm("d-psgd on torus") == "model-average(gossip(torus))"
    assert read_algorithm("relay-sgd on binary-tree") == "model-average(relay(binary-tree))"
    assert read_algorithm("d2 on chain") == "d2(gossip(chain, rule=lazy))"


@pytest.mark.parametrize(
    ("name", "text", "spec"),
    [
        ("rule", "lazy", "model-average(gossip(ring, rule=lazy))"),
        ("exchange.rule", "lazy", "model-average(gossip(ring, rule=lazy))"),
        ("exchange", "relay(chain)", "model-average(relay(chain))"),
        ("exchange.topology", "star", "model-average(gossip(star))"),
        ("order", "combine-first", "model-average(gossip(ring), order=combine-first)"),
        ("bucket", "1MiB", "model-average(gossip(ring), bucket=1MiB)"),
    ],
)
def test_a_parameter_of_the_algorithm(name: str, text: str, spec: str) -> None:
    assert change("d-psgd", PLAN, name, text) == (spec, PLAN)


@pytest.mark.parametrize(
    ("name", "text", "field", "value"),
    [
        ("lr", "0.5", "lr", 0.5),
        ("momentum", "0", "momentum", 0.0),
        ("global-batch", "128", "global_batch", 128),
        ("optimizer", "adam", "optimizer", "adam"),
        ("partition", "dirichlet(0.5)", "partition", "dirichlet(0.5)"),
        ("samples", "none", "samples", None),
    ],
)
def test_a_parameter_of_the_plan(name: str, text: str, field: str, value: object) -> None:
    spec, plan = change("d-psgd", PLAN, name, text)
    assert spec == "d-psgd"
    assert getattr(plan, field) == value
    assert dataclasses.replace(plan, **{field: getattr(PLAN, field)}) == PLAN


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("speed", "1", r"has no parameter 'speed'; there is exchange, exchange.topology, exchange.rule, bucket"),
        ("exchange.speed", "1", r"has no parameter 'exchange.speed'"),
        ("lr", "fast", r"lr takes a number such as 0.1, not 'fast'"),
        ("topology", "maze", r"there is no topology 'maze'"),
        ("rule", "none", r"rule is one of metropolis, uniform, lazy, not 'none'"),
    ],
)
def test_a_mistake_is_said(name: str, text: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        change("d-psgd", PLAN, name, text)


def test_who_has_a_graph() -> None:
    assert has_parameter("d-psgd", "topology")
    assert has_parameter("d2", "topology")
    assert not has_parameter("allreduce-model", "topology")


def test_labels_become_parts_of_file_names() -> None:
    assert make_slug("Relay-SGD on double-binary-tree") == "relay-sgd-on-double-binary-tree"
    assert make_slug("dirichlet(0.01)") == "dirichlet-0.01"
    long = [make_slug(f"model-average(gossip(ring, rule={rule}), bucket=1MiB)") for rule in ("lazy", "uniform")]
    assert len(set(long)) == 2
    assert {len(slug) for slug in long} == {32}


def test_lists_are_split_outside_parentheses() -> None:
    assert split_list("a, b(c, d(e,f), g),h") == ["a", "b(c, d(e,f), g)", "h"]
