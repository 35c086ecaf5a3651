"""What every topology must do, for every one found in the folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from catalogue import every

from tutti.errors import UserError
from tutti.graph import (
    find_delays,
    find_diameter,
    find_links,
    find_spectral_gap,
    is_doubly_stochastic,
    make_mixing,
)
from tutti.spec import parse
from tutti.topologies.base import Topology, find_parents, receives

SPECS = [
    *every(Topology),
    "edge-list(0-1-2-3+1-3+4-0)",
    "erdos-renyi(seed=7)",
    "random-pairing(seed=3)",
    "random-regular(3, seed=1)",
    "torus(2)",
]
SIZES = (*range(1, 18), 32)


EACH = pytest.mark.parametrize("spec", SPECS)


def refusal(topology: Topology, size: int) -> str:
    """Why it does not take so many workers, or nothing."""
    try:
        topology.check(size)
    except UserError as error:
        return str(error)
    return ""


def sizes_of(topology: Topology) -> list[int]:
    """The numbers of workers that it takes."""
    return [size for size in SIZES if not refusal(topology, size)]


def moments(topology: Topology) -> list[tuple[int, int]]:
    """Steps and parts worth looking at."""
    return [(step, part) for step in (0, 1, 2, 5, 1000) for part in range(topology.parts)]


@EACH
def test_it_takes_one_worker_and_some_number_above(spec: str) -> None:
    topology = parse(spec, Topology)
    topology.check(1)
    assert [topology.peers(0, 1, step, part) for step, part in moments(topology)] == [[]] * 5 * topology.parts
    assert max(sizes_of(topology)) > 1


@EACH
def test_a_size_that_does_not_work_is_refused_in_one_sentence(spec: str) -> None:
    topology = parse(spec, Topology)
    for size in set(SIZES) - set(sizes_of(topology)):
        sentence = refusal(topology, size)
        assert "\n" not in sentence
        assert f"'{topology}'" in sentence
        assert str(size) in sentence
        with pytest.raises(UserError):
            find_links(topology, size)


@EACH
def test_peers_are_others_each_once_in_rising_order(spec: str) -> None:
    topology = parse(spec, Topology)
    for size in sizes_of(topology):
        for step, part in moments(topology):
            for rank in range(size):
                peers = topology.peers(rank, size, step, part)
                assert peers == sorted(set(peers) - {rank})
                assert all(type(peer) is int and 0 <= peer < size for peer in peers)


@EACH
def test_links_go_both_ways_unless_it_says_otherwise(spec: str) -> None:
    topology = parse(spec, Topology)
    for size in sizes_of(topology):
        for step, part in moments(topology):
            links = find_links(topology, size, step, part)
            assert topology.directed or (links == links.T).all()
            for rank in range(size):
                assert receives(topology, rank, size, step, part) == np.flatnonzero(links[:, rank]).tolist()


@EACH
def test_it_changes_only_if_it_says_so(spec: str) -> None:
    topology = parse(spec, Topology)
    for size in sizes_of(topology):
        period = topology.period(size)
        assert period == 1 or topology.changing
        seen = {find_links(topology, size, step).tobytes() for step in (0, 1, 2, 3, 4, 1000)}
        assert len(seen) == 1 or topology.changing


def list_peers() -> str:
    found = [parse(spec, Topology) for spec in SPECS]
    each = [(topology, size, step) for topology in found for size in sizes_of(topology) for step in (0, 3)]
    return json.dumps([topology.peers(rank, size, step) for topology, size, step in each for rank in range(size)])


def test_everybody_sees_the_same_graph() -> None:
    """Another process, with other hashes, finds the same peers."""
    program = f"import sys; sys.path[:0] = {sys.path}; from test_topologies import list_peers; print(list_peers())"
    environment = {**os.environ, "PYTHONHASHSEED": "12345", "PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == list_peers()


@EACH
def test_what_it_gives_can_be_changed_by_whoever_asked(spec: str) -> None:
    topology = parse(spec, Topology)
    for size in sizes_of(topology):
        given = topology.peers(0, size)
        kept = list(given)
        given.append(-1)
        assert topology.peers(0, size) == kept


@EACH
def test_mixing_keeps_the_mean(spec: str) -> None:
    topology = parse(spec, Topology)
    for size in sizes_of(topology):
        for step, part in moments(topology):
            links = find_links(topology, size, step, part)
            matrix = make_mixing(topology, size, step, part)
            assert is_doubly_stochastic(matrix)
            assert (matrix.diagonal() > 0).all()
            assert ((matrix > 0) == (links.T | np.eye(size, dtype=bool))).all()
            assert topology.directed or np.array_equal(matrix, matrix.T)


def pass_on(topology: Topology, size: int, part: int, source: int) -> list[int]:
    """When everybody has the message of `source`, passed on round by round."""
    known, rounds = {source: 0}, 0
    while len(known) < size and rounds < 200:
        news = {peer for worker in known for peer in topology.peers(worker, size, rounds, part)}
        rounds += 1
        known |= dict.fromkeys(news - known.keys(), rounds)
    return [known[rank] for rank in range(size)]


@EACH
def test_delays_are_the_shortest_ways(spec: str) -> None:
    topology = parse(spec, Topology)
    for size in sizes_of(topology):
        for part in range(topology.parts):
            delays = find_delays(topology, size, part=part)
            for source in (0, size - 1):
                assert delays[:, source].tolist() == pass_on(topology, size, part, source)
            assert find_diameter(topology, size) >= delays.max()


@EACH
def test_gossip_agrees_in_the_end(spec: str) -> None:
    """All members are connected, so none has a gap of zero."""
    topology = parse(spec, Topology)
    for size in sizes_of(topology):
        for part in range(topology.parts):
            gap, per_step = find_spectral_gap(topology, size, part=part)
            assert 0 < per_step <= gap <= 1
            assert per_step == gap or topology.changing


@EACH
def test_a_tree_can_be_found_where_links_stay_and_go_both_ways(spec: str) -> None:
    topology = parse(spec, Topology)
    for size in sizes_of(topology):
        if topology.directed or topology.changing:
            with pytest.raises(UserError, match="holds no tree"):
                find_parents(topology, size)
            return
        for part in range(topology.parts):
            root = topology.root(size, part)
            parents, delays = find_parents(topology, size, part), find_delays(topology, size, part=part)
            assert [rank for rank in range(size) if parents[rank] == -1] == [root]
            for rank in set(range(size)) - {root}:
                assert parents[rank] in topology.peers(rank, size, part=part)
                assert delays[root, rank] == delays[root, parents[rank]] + 1


@EACH
def test_text_reads_back(spec: str) -> None:
    topology = parse(spec, Topology)
    assert parse(str(topology), Topology) == topology
