"""Well-known names -> specs. Each stands wherever an algorithm may; `ddp(bucket=1MiB)` changes one field of it."""

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
