"""Well-known names -> specs. Each stands wherever what it is short for may; `ddp(bucket=1MiB)` changes one field."""

from __future__ import annotations

PRESETS: dict[str, str] = {
    # What people write first: one native collective per tensor, after backward.
    "gather-scatter": "gradient-average(all-reduce(native(gather-scatter)), bucket=0, overlap=false)",
    "all-gather": "gradient-average(all-reduce(native(all-gather)), bucket=0, overlap=false)",
    "all-reduce": "gradient-average(all-reduce(native), bucket=0, overlap=false)",
    # Our ring over flat buckets: after backward, and overlapped with it.
    "ring": "gradient-average(all-reduce(ring), overlap=false)",
    "ddp": "gradient-average(all-reduce(ring))",
    # The same route for the weights, after every worker's own step.
    "allreduce-model": "model-average(all-reduce(ring))",
    # Neighbours only: gossip, in both orders; relay of models and of updates; momentum of all; one-way links.
    "d-psgd": "model-average(gossip(ring))",
    "d-psgd-overlap": "model-average(gossip(ring), order=combine-first)",
    "relay-sgd": "model-average(relay(double-binary-tree))",
    "relay-sgd-chain": "model-average(relay(chain))",
    "relay-sgd-tree": "model-average(relay(binary-tree))",
    "relay-sgd-grad": "update-average(relay(double-binary-tree, missing=initial))",
    "qg-dsgd": "quasi-global(gossip(ring))",
    "sgp": "model-average(push-sum(one-peer-exponential))",
}

# The routes that people know by name.
ROUTES: dict[str, str] = {
    "binary-tree": "tree(binary-tree)",
    "double-binary-tree": "tree(double-binary-tree)",
}
