"""What the bad worker sends, and that nobody else is touched."""

from __future__ import annotations

import importlib
import math
import zlib

import numpy as np
import pytest
import torch
from exchange_oracle import draw, layout_of, own_test, tell_all
from torch import Tensor
from workers import on_threads

from tutti.comm.base import Comm
from tutti.comm.threads import World
from tutti.errors import UserError
from tutti.exchanges.base import Exchange
from tutti.exchanges.corrupt import Corrupt
from tutti.layout import Layout
from tutti.spec import SpecError, parse

LAYOUT = Layout.of([("weight", torch.zeros(4, 4))])
WAYS = ("sign-flip", "huge", "nan", "noise", "zero")


def reference(exchange: Corrupt, rows: np.ndarray, samples: np.ndarray, step: int) -> np.ndarray:
    """The formula, for the contract: the exchange within, given what the bad worker makes of its row."""
    drawn = np.random.default_rng((exchange.seed, exchange.worker, step, zlib.crc32(exchange.tag.encode())))
    row = rows[exchange.worker]
    spoilt = {
        "sign-flip": -row,
        "huge": row * 1e6,
        "nan": np.full_like(row, np.nan),
        "noise": drawn.normal(size=row.shape),
        "zero": np.zeros_like(row),
    }[exchange.by]
    rows = np.vstack([rows[: exchange.worker], spoilt, rows[exchange.worker + 1 :]])
    within = importlib.import_module(f"exchanges.test_{exchange.exchange.name.replace('-', '_')}")
    return within.reference(exchange.exchange, rows, samples, step)


def refusal(exchange: Corrupt, size: int) -> str:
    """By default the bad worker is one that is always there."""
    within = importlib.import_module(f"exchanges.test_{exchange.exchange.name.replace('-', '_')}")
    return within.refusal(exchange.exchange, size)


def send(
    spec: str, size: int = 3, step: int = 0, tag: str = "gradients/0", dtype: torch.dtype = torch.float32
) -> Tensor:
    """What comes out when every worker sends its number plus one, used by one more worker each, for two samples."""

    def work(comm: Comm) -> Tensor:
        layout = Layout.of([("weight", torch.zeros(4, 4, dtype=dtype))])
        exchange = parse(spec, Exchange).setup(comm, layout, tag)
        buffer = torch.full((layout.total,), comm.rank + 1.0, dtype=dtype)
        buffer[-2] = 1
        buffer[:-2] *= exchange.scale(2.0)
        exchange.agree(buffer, step, 2.0)
        return buffer

    results = on_threads(size, work)
    assert all(result.view(torch.uint8).equal(results[0].view(torch.uint8)) for result in results)
    return results[0]


@pytest.mark.parametrize(
    ("by", "body"),
    [("sign-flip", 2.0), ("huge", 4.0 + 2e6), ("huge, times=-3", -2.0), ("zero", 4.0), ("nan", math.nan)],
)
@pytest.mark.parametrize("route", ["star", "ring"])
def test_only_the_body_of_one_worker_is_spoilt(route: str, by: str, body: float) -> None:
    """1 + 2 + 3 with something else for 2, whether it is scaled on the way in or not; flags and weights are right."""
    result = send(f"corrupt(all-reduce({route}, sum), worker=1, by={by})")
    assert result.tolist() == pytest.approx([body] * 16 + [3.0, 3.0], nan_ok=True)


@pytest.mark.parametrize("worker", [0, 1, 2])
def test_which_worker_it_is(worker: int) -> None:
    assert send(f"corrupt(all-reduce(combine=sum), worker={worker}, by=zero)")[0] == 6.0 - (worker + 1)


def test_the_noise_is_as_wide_as_asked_and_does_not_depend_on_the_contribution() -> None:
    noise = send("corrupt(all-reduce(star, krum), by=noise, spread=3)", size=1)[:-2]
    assert noise.norm() / 4 == pytest.approx(3.0, rel=0.6)
    assert send("corrupt(all-reduce(star, krum), by=noise, spread=0)", size=1)[:-2].equal(torch.zeros(16))
    torch.testing.assert_close(send("corrupt(all-reduce(star, sum), by=noise, spread=3)")[:-2], noise + 5)


def test_the_noise_is_scaled_as_a_contribution_is() -> None:
    """By samples and the number of workers where sums travel, so that both routes give the same."""
    one, other = (
        send(f"corrupt(all-reduce({route}), worker=2, by=noise)", dtype=torch.float64) for route in ("star", "ring")
    )
    torch.testing.assert_close(one, other)


def test_the_noise_is_the_same_in_every_run_and_another_one_every_step() -> None:
    spec = "corrupt(all-reduce(star, sum), by=noise)"
    assert send(spec).equal(send(spec))
    others = [
        send(spec, step=1),
        send(spec, tag="gradients/1"),
        send("corrupt(all-reduce(star, sum), by=noise, seed=1)"),
        send("corrupt(all-reduce(star, sum), by=noise, worker=1)") - 1,
    ]
    for each in [send(spec), *others]:
        assert sum(torch.allclose(each[:-2], other[:-2]) for other in [send(spec), *others]) == 1


@pytest.mark.parametrize("by", WAYS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_any_type_of_number(by: str, dtype: torch.dtype) -> None:
    """And the median lets nothing of it through, whatever it is."""
    result = send(f"corrupt(all-reduce(star, median), worker=1, by={by})", dtype=dtype)
    assert result.dtype == dtype
    assert ((result[:-2] >= 1) & (result[:-2] <= 3)).all()


@pytest.mark.parametrize("worker", [2, 7])
def test_there_is_no_such_worker(worker: int) -> None:
    sentence = rf"worker of 'corrupt' must be below the number of workers \(2\), not {worker}"
    with pytest.raises(UserError, match=sentence):
        Corrupt(worker=worker).setup(World(2).comm(0), LAYOUT, "gradients/0")
    with pytest.raises(SpecError, match="worker of 'corrupt' must be at least 0"):
        parse("corrupt(worker=-1)", Exchange)


def test_the_exchange_within_says_what_it_cannot_do() -> None:
    with pytest.raises(UserError, match="'median' needs whole contributions"):
        parse("corrupt(all-reduce(ring, median))", Exchange).setup(World(2).comm(0), LAYOUT, "gradients/0")


def test_it_may_be_wrapped_again() -> None:
    """Two bad workers of five; the spec says so and reads back."""
    text = "corrupt(corrupt(all-reduce(star, sum), worker=1, by=zero), worker=3, by=zero)"
    assert str(parse(text, Exchange)) == text
    assert send(text, size=5)[0] == 1 + 3 + 5


@pytest.mark.parametrize(
    ("within", "exact", "tolerates_loss"),
    [("all-reduce", True, False), ("gossip", False, True), ("relay", False, True), ("push-sum", False, False)],
)
def test_its_traits_are_those_of_the_exchange_within(within: str, exact: bool, tolerates_loss: bool) -> None:
    exchange = parse(f"corrupt({within})", Exchange)
    assert (exchange.exact, exchange.tolerates_loss) == (exact, tolerates_loss)
    assert exchange.mixing(3) is None, "the bad worker's part is no average"


@pytest.mark.parametrize("within", ["gossip(ring)", "relay(missing=initial)", "relay(missing=own)", "push-sum"])
def test_among_neighbours_it_spoils_what_goes_out_and_what_it_keeps(within: str) -> None:
    """The exchange within gets the spoilt row from the beginning, and what all have in common unspoilt."""
    exchange, layout = parse(f"corrupt({within}, worker=1, by=huge, times=-2)", Corrupt), layout_of(5)
    start, bodies = draw(4, layout, 5)
    spoilt = bodies * np.array([1, -2, 1, 1])[:, None]
    expected = own_test(exchange.exchange).history(exchange.exchange, start, spoilt)
    np.testing.assert_allclose(tell_all(exchange, layout, start, bodies), expected, rtol=1e-12, atol=1e-12)


def test_the_state_is_that_of_the_exchange_within(monkeypatch: pytest.MonkeyPatch) -> None:
    exchange = Corrupt().setup(World(1).comm(0), LAYOUT, "gradients/0")
    loaded: list[dict[str, int]] = []
    monkeypatch.setattr(exchange.exchange, "state_dict", lambda: {"residual": 3})
    monkeypatch.setattr(exchange.exchange, "load_state_dict", loaded.append)
    exchange.load_state_dict(exchange.state_dict())
    assert loaded == [{"residual": 3}]
