"""What is measured is what was asked for, and what cannot be is refused in one sentence."""

from __future__ import annotations

from typing import Any

import pytest
from hosts_here import needs_hosts, needs_quota, run_inside

from tutti.errors import UserError
from tutti.hosts import measure
from tutti.hosts.measure import TOLERANCE
from tutti.lab.network import find_doubts

MEASURE = """
from tutti.errors import UserError
from tutti.hosts import measure
from tutti.hosts.links import Wiring

def take(rates, cpus=None, quotas=None):
    with Wiring(rates) as wiring:
        try:
            return measure.measure(wiring, cpus or [None] * len(rates), quotas or [""] * len(rates))
        except UserError as error:
            return str(error)

"""


@pytest.fixture(scope="module")
def two_links() -> dict[str, Any]:
    """On a machine that stands still now and then, as one that does not for once."""
    found: dict[str, Any] = {}
    for _ in range(4):
        found = run_inside(f"{MEASURE}result = take([10e6, 50e6])")
        if not find_doubts(found):
            break
    return found


@needs_hosts
@pytest.mark.parametrize(("host", "rate"), [(0, 10e6), (1, 50e6)])
def test_a_link_has_its_rate_in_both_directions(two_links: dict[str, Any], host: int, rate: float) -> None:
    row = two_links["measured"][host]
    assert set(row) == {"host", "asked", "out", "in", "payload_out", "payload_in", "latency", "cpu_asked", "cpu"}
    assert (row["host"], row["asked"]) == (host, rate)
    assert row["out"] == pytest.approx(rate, rel=TOLERANCE)
    assert row["in"] == pytest.approx(rate, rel=TOLERANCE)
    assert 0 < row["payload_out"] < rate
    assert 0 < row["payload_in"] < rate
    assert 0 < row["latency"] < 0.05
    assert (row["cpu_asked"], row["cpu"]) == (None, None)


@needs_hosts
def test_the_congestion_control_is_named(two_links: dict[str, Any]) -> None:
    assert two_links["system_congestion_control"].isidentifier()


@needs_hosts
def test_a_link_without_a_rate_has_only_a_latency() -> None:
    (row,) = run_inside(f"{MEASURE}result = take([None])")["measured"]
    assert row["asked"] is None
    assert "out" not in row
    assert row["latency"] > 0


@needs_hosts
def test_a_rate_that_cannot_be_is_refused() -> None:
    said = run_inside(f"{MEASURE}measure._LOOKS = 2\nresult = take([1e11])")
    assert said.startswith("the link of host 0 carries ")
    assert said.endswith(
        " Mbit/s where 100,000.0 were asked for; this machine is too busy or too slow for that, so ask for less"
    )
    assert "\n" not in said


@needs_hosts
@needs_quota
def test_quotas_are_measured_at_once() -> None:
    """A host without one computes beside them, and its share is nobody's business."""
    result = run_inside(f"""{MEASURE}
from tutti.hosts.quota import Quota
quotas = [Quota.make(f"test{{index}}", cpus) for index, cpus in enumerate((0.2, 0.4))]
result = take([None] * 3, [0.2, 0.4, None], [*(str(quota.folder) for quota in quotas), ""])
for quota in quotas:
    quota.close()
""")
    first, second, third = result["measured"]
    assert (first["cpu_asked"], second["cpu_asked"], third["cpu_asked"]) == (0.2, 0.4, None)
    assert 0 < first["cpu"] < 0.25
    assert 0 < second["cpu"] < 0.48
    assert third["cpu"] is None


def test_a_quota_in_which_nothing_can_run_is_named() -> None:
    with pytest.raises(UserError, match=r"under the quota /no/such/group \(.*No such file.*\); run as root, or leave"):
        measure._shares(["/no/such/group"])


def test_without_quotas_nothing_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure.subprocess, "Popen", None)
    assert measure._shares(["", ""]) == [0.0, 0.0]


# --- looks -----------------------------------------------------------------------------------------------------------


def make_look(out: float, into: float, payload_out: float, payload_in: float) -> dict[str, float]:
    return {"out": out, "in": into, "payload_out": payload_out, "payload_in": payload_in}


@pytest.mark.parametrize("carried", [98, 66])
def test_the_best_look_is_taken_where_a_busy_machine_has_no_good_one(
    monkeypatch: pytest.MonkeyPatch, carried: float
) -> None:
    looks = [make_look(50, 99, 95, 95), make_look(carried, 99, 70, 95), make_look(60, 60, 95, 95)]
    monkeypatch.setattr(measure, "_look", lambda *_: looks)
    assert measure._measure_rate(None, 0, 100) is looks[1]  # type: ignore[arg-type]  # nobody looks at it


def test_less_than_half_of_a_rate_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "_look", lambda *_: [make_look(49e6, 99e6, 95e6, 95e6)])
    with pytest.raises(UserError, match=r"host 0 carries 49\.0 Mbit/s where 100\.0 were asked for"):
        measure._measure_rate(None, 0, 100e6)  # type: ignore[arg-type]


def test_the_worse_direction_counts() -> None:
    assert measure._off(make_look(100, 97, 0, 0), 100) == pytest.approx(0.03)
    assert measure._off(make_look(110, 97, 0, 0), 100) == pytest.approx(0.10)


@pytest.mark.parametrize(("payload", "in_step"), [(95, True), (101, False), (60, False)])
def test_payload_that_came_late_is_noticed(payload: float, in_step: bool) -> None:
    assert measure._in_step(make_look(100, 100, payload, 95), 100) is in_step
    assert measure._in_step(make_look(100, 100, 95, payload), 100) is in_step


def test_a_rate_is_what_passed_between_two_samples() -> None:
    before, after = {"out": (1000, 5.0), "in": (0, 5.0)}, {"out": (2000, 7.0), "in": (500, 6.0)}
    assert measure._between(before, after) == {"out": 4000.0, "in": 4000.0}
