"""Bandwidths in nccl-tests' definitions, checked with figures computed by hand; medians, p99, groups, winners."""

from __future__ import annotations

import json

import pytest
from sample_rows import make_row as sample

from tutti.lab.bench.measure import Measured
from tutti.lab.bench.rows import Row, find_fastest, find_p99, group_rows, make_json, make_row
from tutti.networks.base import Network
from tutti.spec import parse

LOOPBACK = parse("loopback", Network)


def read(operation: str, times: list[float], nbytes: int = 8_000_000, workers: int = 4) -> Row:
    measured = Measured(operation, "native", "float32", nbytes, 1, times, True, copy=0.001)
    return make_row(measured, workers, LOOPBACK, "tcp")


@pytest.mark.parametrize(
    ("operation", "workers", "algbw", "busbw"),
    [
        ("all-reduce", 4, 4e9, 6e9),
        ("all-reduce", 2, 4e9, 4e9),
        ("reduce-scatter", 4, 4e9, 3e9),
        ("all-gather", 4, 4e9, 3e9),
        ("gather", 8, 4e9, 3.5e9),
        ("scatter", 4, 4e9, 3e9),
        ("all-to-all", 4, 4e9, 3e9),
        ("reduce", 4, 4e9, 4e9),
        ("broadcast", 4, 4e9, 4e9),
    ],
)
def test_bandwidths_of_eight_megabytes_in_two_milliseconds(
    operation: str, workers: int, algbw: float, busbw: float
) -> None:
    row = read(operation, [0.002], workers=workers)
    assert row.algbw == pytest.approx(algbw)
    assert row.busbw == pytest.approx(busbw)


def test_median_minimum_and_quartiles() -> None:
    row = read("all-reduce", [0.005, 0.001, 0.002, 0.004, 0.003])
    assert (row.seconds, row.min, row.quartiles) == (0.003, 0.001, (0.002, 0.004))
    assert row.samples == 5
    assert row.floor == pytest.approx(0.0015)
    single = read("all-reduce", [0.005])
    assert single.quartiles == (0.005, 0.005)


def test_p99_only_of_a_hundred_samples() -> None:
    times = [float(n) for n in range(1, 102)]
    assert find_p99(times) == pytest.approx(100.0)
    assert find_p99(times[:99]) is None
    assert read("all-reduce", times).p99 == pytest.approx(100.0)


def test_json_has_the_public_keys_and_is_plain() -> None:
    (row,) = json.loads(json.dumps(make_json([read("all-reduce", [0.002])])))
    public = {"op", "route", "workers", "bytes", "seconds", "algbw", "busbw", "correct"}
    beside = {"min", "p99", "samples", "repeats", "dtype", "network", "wire", "floor", "quartiles", "predicted", "spec"}
    assert set(row) == public | beside
    assert (row["op"], row["bytes"], row["correct"]) == ("all-reduce", 8_000_000, True)
    assert row["algbw"] == row["bytes"] / row["seconds"]


def test_groups_keep_the_order() -> None:
    rows = [sample("a", op="reduce"), sample("a"), sample("b"), sample("a", nbytes=4096), sample("a", workers=2)]
    groups = group_rows(rows)
    assert list(groups) == [("reduce", 4, "float32"), ("all-reduce", 4, "float32"), ("all-reduce", 2, "float32")]
    assert [row.route for row in groups["all-reduce", 4, "float32"][2**20]] == ["a", "b"]


def test_the_fastest_are_those_within_noise_and_never_a_wrong_one() -> None:
    rows = [sample("slow", 2e-3), sample("b", 1.01e-3), sample("a", 1e-3), sample("wrong", 1e-4, correct=False)]
    assert [row.route for row in find_fastest(rows)] == ["a", "b"]
    assert find_fastest([sample(correct=False)]) == []
