"""`ddp` against `torch-ddp` and `all-reduce` on a real backward: alternating in one run, medians with their interval.

    python benchmarks/overlap.py [--model vgg-11] [--workers 4] [--batch 16] [--rounds 7] [--steps 6]
    python benchmarks/overlap.py torch-ddp "ddp(bucket=auto)" --network "hosts(1Gbit, cpu=0.45)" --model resnet-18

Every round trains a few steps with each way in turn, on the same workers and the same model; the ratio of a round
compares neighbours in time, so slow minutes of the machine cancel. The floor is computing alone (`compute`): the step
with no exchange at all.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import torch

from tutti.algorithms.gradient_average import GradientAverage
from tutti.comm.base import Comm
from tutti.engine import Run, distribute
from tutti.launch import LaunchOptions, Report, launch
from tutti.models.base import Model
from tutti.networks.base import Network
from tutti.spec import Seconds, parse, parse_quantity
from tutti.tasks.synthetic import Synthetic

COMPUTE = "compute"  # a step with no exchange at all
_BEFORE = 2  # steps of a round that are not timed
WAYS = ("torch-ddp", "ddp", "ddp(bucket=auto)", "all-reduce")


class Contestant:
    """One way with its own model and optimizer, on this worker."""

    def __init__(self, comm: Comm, spec: str, model: str, batch: int, compute: float) -> None:
        torch.manual_seed(0)
        network = parse(model, Model).build((3, 32, 32), 10)
        network = Synthetic(compute=compute).prepare(network, comm.clock)
        self.optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
        self.run: Run = distribute(network, self.optimizer, "ddp" if spec == COMPUTE else spec, comm=comm.fork(spec))
        generator = torch.Generator().manual_seed(comm.rank)
        self.inputs = torch.randn(batch, 3, 32, 32, generator=generator)
        self.targets = torch.randint(10, (batch,), generator=generator)
        self.seconds: list[float] = []  # per step, for every round
        self.hidden: list[float] = []
        self.exposed: list[float] = []
        self.first: list[float] = []  # from a step's beginning until the first bucket is full
        self.steps, self.sent = 0, 0.0
        self._full = 0.0
        for parameter in self.run.replica.buckets[0].parameters if self.run.replica.buckets else []:
            parameter.register_post_accumulate_grad_hook(self._note)

    def go(self, steps: int, exchange: bool = True) -> None:
        """A round: so many steps, timed between barriers. A step may leave something under way for the next one, so two
        steps go before them (the first has nothing from one before it), and nothing is under way behind the round."""
        run, sent = self.run, self._sent()
        for _ in range(_BEFORE):
            self.step(exchange)
        run.comm.barrier()
        run.take_times()
        begun = run.clock.now()
        for _ in range(steps):
            self.step(exchange)
        hidden, exposed = run.algorithm.overlap_seconds() or [each / steps for each in run.take_times()]
        run.comm.barrier()
        self.seconds.append((run.clock.now() - begun) / steps)
        run.algorithm.drain()
        self.hidden.append(hidden)
        self.exposed.append(exposed)
        self.steps, self.sent = self.steps + steps + _BEFORE, self.sent + self._sent() - sent

    def _note(self, _: torch.Tensor) -> None:
        self._full = self.run.clock.now()

    def step(self, exchange: bool = True) -> None:
        begun = self.run.clock.now()
        if exchange:
            self._backward()
            self.first.append(max(0.0, self._full - begun))
            self.run.step()
        else:
            with self.run.accumulate():
                self._backward()
            self.run.replica.step()
        self.optimizer.zero_grad()

    def settle(self) -> None:
        """Train until the size of the buckets is fixed."""
        algorithm = self.run.algorithm
        while isinstance(algorithm, GradientAverage) and algorithm.tuning:
            self.step()

    def _backward(self) -> None:
        torch.nn.functional.cross_entropy(self.run.model(self.inputs), self.targets).backward()

    def _sent(self) -> float:
        return sum(self.run.meter.sent(kind) for kind in ("gradients", "weights"))


def measure(
    comm: Comm,
    report: Report,
    ways: tuple[str, ...],
    model: str,
    batch: int,
    rounds: int,
    steps: int,
    compute: float = 0.0,
) -> dict[str, dict[str, list[float]]]:
    """What worker 0 saw in every round, by way: seconds, hidden and exposed per step; and what each worker sent."""
    contestants = {way: Contestant(comm, way, model, batch, compute) for way in (*ways, COMPUTE)}
    for contestant in contestants.values():
        contestant.settle()
    for number in range(rounds + 1):
        for way, contestant in contestants.items():
            contestant.go(steps, exchange=way != COMPUTE)
        report({"event": "round", "round": number})
    found = {}
    for way, each in contestants.items():
        sent = torch.zeros(comm.size, 1, dtype=torch.float64)
        comm.all_gather(torch.tensor([each.sent / each.steps], dtype=torch.float64), sent)
        warm = {"seconds": each.seconds[1:], "hidden": each.hidden[1:], "exposed": each.exposed[1:]}
        found[way] = {**warm, "first": each.first or [0.0], "sent": sent[:, 0].tolist()}
        each.run.close()
    return found


def summarise(found: dict[str, dict[str, list[float]]], reference: str) -> list[dict[str, Any]]:
    rows = []
    for way, each in found.items():
        ratios = [mine / theirs for mine, theirs in zip(each["seconds"], found[reference]["seconds"], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        medians = {key: statistics.median(each[key]) for key in ("seconds", "hidden", "exposed", "first")}
        sent = {"busiest": max(each["sent"]), "total": sum(each["sent"])}
        rows.append({"way": way, **medians, "ratio": middle, "quartiles": [low, high], **sent})
    return rows


def show(rows: list[dict[str, Any]], reference: str) -> None:
    print(f"{'':<52}{'ms per step':>28}{'MB sent per step':>38}")
    print(f"{'way':<52}{'in all':>8}{'hidden':>10}{'exposed':>10}{'busiest':>10}{'all':>8}   times {reference}")
    for row in rows:
        low, high = row["quartiles"]
        times = f"{row['seconds'] * 1e3:>8.1f}{row['hidden'] * 1e3:>10.1f}{row['exposed'] * 1e3:>10.1f}"
        sent = f"{row['busiest'] / 1e6:>10.1f}{row['total'] / 1e6:>8.1f}"
        print(f"{row['way']:<52}{times}{sent}   {row['ratio']:.3f} ({low:.3f} – {high:.3f})")


def run_ways(args: argparse.Namespace, ways: tuple[str, ...]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The rows of a race on the network asked for, and what that network was measured to be."""
    network = parse(args.network, Network)
    network.enter()
    compute = parse_quantity(args.compute, Seconds, "--compute")
    work = (ways, args.model, args.batch, args.rounds, args.steps, compute)
    with network.open(args.workers) as fabric:
        found = launch(measure, work, LaunchOptions(args.workers, fabric=fabric), lambda _: None)
        return summarise(found, ways[0]), fabric.description or {}


def make_parser(about: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ways", nargs="*", help="specs; the first is what the others are compared with")
    parser.add_argument("--model", default="vgg-11")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--network", default="loopback")
    parser.add_argument("--compute", default="0s", help="take this time in the place of computing, asleep: 300ms")
    parser.add_argument("--json", type=Path)
    return parser


def describe(args: argparse.Namespace) -> str:
    computing = f"batch {args.batch}" if args.compute == "0s" else f"computing {args.compute} asleep"
    where = f"{args.model}, {args.workers} workers, {args.network}, {computing}"
    return f"{where}, {args.rounds} rounds of {args.steps} steps"


def main() -> None:
    args = make_parser(__doc__ or "").parse_args()
    ways = tuple(args.ways) or WAYS
    rows, _ = run_ways(args, ways)
    print(describe(args))
    show(rows, ways[0])
    if args.json:
        args.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
