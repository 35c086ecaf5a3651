"""The study of graphs, told from figures by hand: what goes together, and verdicts that turn with the figures."""

from __future__ import annotations

import math
from typing import Any

import pytest
from sample_results import play

from tutti.errors import UserError
from tutti.lab.inquiry import Story
from tutti.lab.report.chart import Chart
from tutti.lab.report.parts import Bullets
from tutti.lab.studies.base import Claim
from tutti.lab.studies.topology import TopologyStudy, find_gap, goes_together

SMALL = TopologyStudy(
    algorithms=("allreduce-model", "d-psgd", "relay-sgd"),
    graphs=("complete", "ring", "chain", "one-peer-exponential"),
    workers=(4, 8),
    seeds=2,
    epochs=2,
    lrs=(0.1,),
)


def tell(study: TopologyStudy = SMALL, measured: bool = True, **ends: float) -> Story:
    """All reach 90 % but d-psgd on the chain, which reaches 80; `ends` are by the setting's name, with underscores."""
    reached = {"d-psgd-chain-8": 0.8, **{key.replace("_", "-"): value for key, value in ends.items()}}

    def figures(name: str, _: int) -> dict[str, Any]:
        setting = name.rpartition("-seed-")[0]
        away = 0.0 if setting.startswith("allreduce") else 0.5
        distances = {"distances": [1.0, away]} if measured else {}
        return {"accuracies": [0.5, reached.get(setting, 0.9)], "loss": 0.1, **distances}

    return study.tell(play(study, figures)[1])


def claim(story: Story, begin: str) -> Claim:
    (found,) = [claim for claim in story.claims if claim.text.startswith(begin)]
    assert isinstance(found, Claim)
    return found


def charts(story: Story) -> list[Chart]:
    return [part for section in story.sections for part in section.parts if isinstance(part, Chart)]


# --- what is run ------------------------------------------------------------------------------------------------------


def test_what_goes_together_runs_and_nothing_else() -> None:
    assert goes_together("d-psgd", "ring", 8)
    assert goes_together("relay-sgd", "ring", 8)  # along a tree of it
    assert not goes_together("relay-sgd", "one-peer-exponential", 8)
    assert not goes_together("d-psgd", "hypercube", 6)
    names = [job.name for job in SMALL.settings()]
    assert "d-psgd-one-peer-exponential-8" in names
    assert "relay-sgd-one-peer-exponential-8" not in names
    specs = {job.name: job.spec for job in SMALL.settings()}
    assert specs["relay-sgd-chain-8"] == "model-average(relay(chain))"
    assert {job.name: job.workers for job in SMALL.settings()}["d-psgd-ring-4"] == 4


def test_who_has_no_graph_runs_once_for_every_number_of_workers() -> None:
    names = [job.name for job in SMALL.settings() if job.name.startswith("allreduce")]
    assert names == ["allreduce-model-4", "allreduce-model-8"]


def test_nothing_that_goes_together_is_a_mistake() -> None:
    with pytest.raises(UserError, match="none of these algorithms goes with any of these graphs"):
        TopologyStudy(algorithms=("relay-sgd",), graphs=("one-peer-exponential",))


def test_gaps_are_those_of_the_graph() -> None:
    assert find_gap("complete", 8) == pytest.approx(1)
    assert find_gap("ring", 8) == pytest.approx(1 - (1 + 2 * math.cos(math.pi / 4)) / 3)
    assert math.isnan(find_gap("hypercube", 6))


# --- what is told -----------------------------------------------------------------------------------------------------


def test_a_larger_gap_is_better_for_gossip_and_no_matter_for_relay() -> None:
    story = tell()
    assert claim(story, "d-psgd does better").verdict == "holds"
    assert claim(story, "d-psgd does better").ours.startswith("chain (gap 0.0507) 80.0 %, complete (gap 1.00) 90.0 %")
    assert claim(story, "relay-sgd learns").verdict == "holds"


def test_the_verdicts_turn() -> None:
    story = tell(d_psgd_chain_8=0.895, relay_sgd_ring_8=0.7)
    assert claim(story, "d-psgd does better").verdict == "does not hold"
    assert claim(story, "relay-sgd learns").verdict == "does not hold"


def test_graphs_stand_from_the_smallest_gap_to_the_largest() -> None:
    accuracy, distance = charts(tell())
    panels = accuracy.draw(narrow=False).axes
    assert [axes.get_title(loc="left") for axes in panels] == ["4 workers", "8 workers"]
    gossip = panels[1].lines[1]
    assert next(iter(gossip.get_ydata())) == pytest.approx(80)
    assert len(panels[1].lines[0].get_xdata()) == 4  # all-reduce beside every graph
    assert [key.text for key in distance.keys] == ["d-psgd", "relay-sgd"]  # all-reduce has no distance


def test_without_distances_there_is_one_chart_less() -> None:
    assert len(charts(tell(measured=False))) == 1


def test_the_table_has_gap_and_distance_beside_the_accuracy() -> None:
    (table,) = tell().summary
    rows = {(row[0].text, row[1].text, row[2].text): [cell.text for cell in row[3:]] for row in table.rows}  # type: ignore[union-attr]
    assert rows["d-psgd", "complete", "8"] == ["1.00", "90.0 ± 0.0", "0.5 ± 0", "0.1"]
    assert rows["allreduce-model", "–", "8"][0] == "–"


def test_what_was_left_out_is_said() -> None:
    (bullets,) = [part for section in tell().sections for part in section.parts if isinstance(part, Bullets)]
    assert bullets.texts[-1] == (
        "What does not go together was left out: relay-sgd on one-peer-exponential with 4 and relay-sgd on "
        "one-peer-exponential with 8."
    )


def test_figures_for_a_program() -> None:
    figure = next(each for each in tell().figures if each["graph"] == "ring" and each["workers"] == 8)
    assert figure["spectral_gap"] == pytest.approx(0.195, abs=0.001)
    assert figure["distances"] == [0.5, 0.5]
