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
from tutti.spec import parse

WAYS = ("torch-ddp", "ddp", "ddp(bucket=auto)", "all-reduce")


class Contestant:
    """One way with its own model and optimizer, on this worker."""

    def __init__(self, comm: Comm, spec: str, model: str, batch: int) -> None:
        torch.manual_seed(0)
        network = parse(model, Model).build((3, 32, 32), 10)
        self.optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
        self.run: Run = distribute(network, self.optimizer, spec, comm=comm.fork(spec))
        generator = torch.Generator().manual_seed(comm.rank)
        self.inputs = torch.randn(batch, 3, 32, 32, generator=generator)
        self.targets = torch.randint(10, (batch,), generator=generator)

    def step(self, exchange: bool = True) -> None:
        if exchange:
            self._backward()
            self.run.step()
        else:
            with self.run.accumulate():
                self._backward()
        self.optimizer.zero_grad()

    def settle(self) -> None:
        """Train until the size of the buckets is fixed."""
        algorithm = self.run.algorithm
        while isinstance(algorithm, GradientAverage) and algorithm.tuning:
            self.step()

    def _backward(self) -> None:
        torch.nn.functional.cross_entropy(self.run.model(self.inputs), self.targets).backward()


def measure(
    comm: Comm, report: Report, ways: tuple[str, ...], model: str, batch: int, rounds: int, steps: int
) -> dict[str, list[float]]:
    """Seconds per step of every round, by way, on worker 0."""
    contestants = {way: Contestant(comm, way, model, batch) for way in ways}
    for contestant in contestants.values():
        contestant.settle()
    times: dict[str, list[float]] = {way: [] for way in (*ways, "compute")}
    for number in range(rounds + 1):
        for way in times:
            exchange = way != "compute"
            contestant = contestants[way if exchange else ways[0]]
            comm.barrier()
            begun = comm.clock.now()
            for _ in range(steps):
                contestant.step(exchange)
            comm.barrier()
            if number > 0:  # the first round warms up
                times[way].append((comm.clock.now() - begun) / steps)
        report({"event": "round", "round": number})
    for contestant in contestants.values():
        contestant.run.close()
    return times


def summarise(times: dict[str, list[float]], reference: str) -> list[dict[str, Any]]:
    rows = []
    for way, seconds in times.items():
        ratios = [mine / theirs for mine, theirs in zip(seconds, times[reference], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        rows.append({"way": way, "step_seconds": statistics.median(seconds), "ratio": middle, "quartiles": [low, high]})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ways", nargs="*", default=WAYS, help="specs; the first is what the others are compared with")
    parser.add_argument("--model", default="vgg-11")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--network", default="loopback")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    ways = tuple(args.ways)
    work = (ways, args.model, args.batch, args.rounds, args.steps)
    network = parse(args.network, Network)
    network.enter()
    with network.open(args.workers) as fabric:
        times = launch(measure, work, LaunchOptions(args.workers, fabric=fabric), lambda _: None)
    rows = summarise(times, ways[0])
    where = f"{args.model}, {args.workers} workers, {network}, batch {args.batch}"
    print(f"{where}, {args.rounds} rounds of {args.steps} steps")
    print(f"{'way':<40}{'ms/step':>10}{'x ' + ways[0]:>14}{'quartiles':>18}")
    for row in rows:
        low, high = row["quartiles"]
        print(f"{row['way']:<40}{row['step_seconds'] * 1e3:>10.1f}{row['ratio']:>14.3f}{low:>10.3f} – {high:.3f}")
    if args.json:
        args.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
