"""RelaySGD, gossip and all-reduce of models beside torch's DDP: alternating in one run, with bytes and floors.

    python benchmarks/relay.py [--workers 8]                           real computing on loopback
    python benchmarks/relay.py --compute 300ms                         computing that takes no CPU, as on a GPU
    python benchmarks/relay.py --compute 2s --network "hosts(200Mbit)" links: how far from the floor
    python benchmarks/relay.py --compute 300ms --network "hosts(1Gbit, latency=10ms)"   where rounds cost

All ways of averaging models step bucket by bucket during backward (update=bucket); those with order=combine-first are
one step late. The floor of a step over links is

    synchronous     max(computing, time of the first full bucket + bytes / rate)
    one step late   max(computing, bytes / rate)

with the bytes of the busiest worker, and the rate that was measured as payload. Ring, chain and trees send the same in
all, 2 (n - 1) models per step; the busiest worker sends 2 (n - 1) / n of them on the ring, 2 on a chain, 3 in a binary
tree, and in the double binary tree 2, half of it up to 3 and half down to 1.
"""

from __future__ import annotations

import json
from typing import Any

from overlap import COMPUTE, describe, make_parser, run_ways, show

WAYS = (
    "allreduce-model(update=bucket)",
    "relay-sgd-chain(update=bucket)",
    "relay-sgd-tree(update=bucket)",
    "relay-sgd(update=bucket)",
    "d-psgd(update=bucket)",
    "model-average(relay(chain), order=combine-first)",
    "d-psgd-overlap",
    "torch-ddp",
)


def add_floors(rows: list[dict[str, Any]], rate: float) -> None:
    """`rate` is bytes of payload per second."""
    computing = next(row["seconds"] for row in rows if row["way"] == COMPUTE)
    for row in rows:
        late = "combine-first" in row["way"] or row["way"] == "d-psgd-overlap"
        first = row["first"] or max(other["first"] for other in rows)  # torch-ddp does not show its buckets
        sending = row["busiest"] / rate
        row["floor"] = max(computing, sending if late or not sending else first + sending)


def show_floors(rows: list[dict[str, Any]]) -> None:
    print(f"\n{'over links':<52}{'floor, ms':>10}{'step, ms':>10}   times its floor")
    for row in rows:
        times = row["seconds"] / row["floor"]
        print(f"{row['way']:<52}{row['floor'] * 1e3:>10.1f}{row['seconds'] * 1e3:>10.1f}   {times:.3f}")


def main() -> None:
    args = make_parser(__doc__ or "").parse_args()
    ways = tuple(args.ways) or WAYS
    rows, network = run_ways(args, ways)
    print(describe(args))
    show(rows, ways[0])
    if any("payload_out" in host for host in network.get("measured", [])):
        add_floors(rows, min(min(host["payload_out"], host["payload_in"]) for host in network["measured"]) / 8)
        show_floors(rows)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
