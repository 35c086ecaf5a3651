"""What works on one CUDA device, tried for real: every preset on CUDA tensors gives the CPU's result.

    PYTHONPATH=src python benchmarks/gpu.py

Needs nothing but torch and numpy. Several workers share the one device, as processes whose CUDA tensors are staged
through host memory by our wire. NCCL refuses two workers on one device, so it runs with one worker here.
"""

from __future__ import annotations

import statistics
from typing import Any

import torch
from torch import nn

from tutti.comm.base import Comm
from tutti.comm.rendezvous import WireOptions
from tutti.engine import distribute
from tutti.launch import LaunchOptions, Report, launch
from tutti.models.base import Model
from tutti.spec import parse
from tutti.train import Plan, train

SPECS = ("gather-scatter", "all-gather", "all-reduce", "ring", "ddp", "gradient-average(all-reduce(star))")
TASK = "synthetic(shape=3x32x32, samples=512)"


def losses(spec: str, device: str, workers: int, wire: str = "tcp") -> list[float]:
    plan = Plan(task=TASK, model="resnet-18", global_batch=32, epochs=None, steps=4, lr=0.01, device=device)
    place = LaunchOptions(workers, wire=WireOptions(wire, device=device))
    rows: list[dict[str, Any]] = launch(train, (spec, plan), place, lambda _: None)
    return [statistics.fmean(step) for step in zip(*(row["losses"] for row in rows), strict=True)]


def compare(name: str, mine: list[float], reference: list[float]) -> None:
    worst = max(abs(a - b) / abs(b) for a, b in zip(mine, reference, strict=True))
    print(f"{name:<58}{worst:>12.1e}  {'ok' if worst < 5e-3 else 'DIFFERS'}", flush=True)


def autocast(comm: Comm, _: Report) -> list[float]:
    """bfloat16 autocast and a GradScaler on CUDA, clipped, with one overflow on one worker."""
    torch.manual_seed(0)
    model = parse("resnet-18", Model).build((3, 32, 32), 10).cuda().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    scaler = torch.amp.GradScaler("cuda")
    found = []
    with distribute(model, optimizer, "ddp(bucket=4MiB)", comm=comm) as run:
        generator = torch.Generator().manual_seed(comm.rank)
        for step in range(4):
            inputs = torch.randn(16, 3, 32, 32, generator=generator).cuda()
            targets = torch.randint(10, (16,), generator=generator).cuda()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = nn.functional.cross_entropy(run.model(inputs), targets)
            scaled = scaler.scale(loss)
            (scaled * float("inf") if step == 1 and comm.rank == 0 else scaled).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            run.step(scaler)
            scaler.update()
            optimizer.zero_grad()
            found.append(float(run.mean(float(loss.detach()))))
        weights = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
        mean = run.mean(weights)
        assert isinstance(mean, torch.Tensor)
        assert torch.allclose(mean, weights, rtol=1e-6, atol=1e-7), "the replicas differ"
        assert bool(weights.isfinite().all()), "the overflow was not skipped"
    return found


def time_step(comm: Comm, _: Report, spec: str) -> float:
    torch.manual_seed(0)
    model = parse("resnet-18", Model).build((3, 32, 32), 10).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    inputs, targets = torch.randn(64, 3, 32, 32).cuda(), torch.randint(10, (64,)).cuda()
    times = []
    with distribute(model, optimizer, spec, comm=comm) as run:
        for _ in range(30):
            torch.cuda.synchronize()
            begun = comm.clock.now()
            nn.functional.cross_entropy(run.model(inputs), targets).backward()
            run.step()
            optimizer.zero_grad()
            torch.cuda.synchronize()
            times.append(comm.clock.now() - begun)
    return statistics.median(times[5:])


def main() -> None:
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}")
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    alone = losses("single", "cuda", 1)
    compare("single on cuda against single on cpu", alone, losses("single", "cpu", 1))
    for spec in SPECS:
        reference = losses(spec, "cpu", 2)
        compare(f"{spec}, 2 processes, cuda against cpu", losses(spec, "cuda", 2), reference)
    compare("ddp, 1 worker, wire torch (nccl)", losses("ddp", "cuda", 1, wire="torch"), alone)
    compare("torch-ddp, 1 worker, wire torch (nccl)", losses("torch-ddp", "cuda", 1, wire="torch"), alone)
    first = launch(autocast, (), LaunchOptions(2), lambda _: None)
    print(f"autocast, GradScaler, clip, channels_last, 2 workers: losses {[round(x, 3) for x in first]}")
    for spec in ("single", "ddp"):
        print(f"{spec}, 1 worker: {launch(time_step, (spec,), LaunchOptions(1), lambda _: None) * 1e3:.2f} ms/step")


if __name__ == "__main__":
    main()
