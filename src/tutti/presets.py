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
}

# The routes that people know by name.
ROUTES: dict[str, str] = {
    "binary-tree": "tree(binary-tree)",
    "double-binary-tree": "tree(double-binary-tree)",
}
