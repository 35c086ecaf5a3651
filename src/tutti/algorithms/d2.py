"""Every worker averages with its neighbours and corrects for what makes its own data differ from theirs.

    x_i <- sum_j W_ij (x_j + u_j + c_j)    u is what the optimizer adds to the weights: -lr * g, or what it makes of g
    c_i <- x_i - (x_i + u_i)               the new weights less the old ones and their step; zero at the start
    rounds and bytes per step: the exchange's, for every bucket of weights

The same as X <- W (2 X - X' - lr (G - G')), where a dash marks the step before: the difference of two steps, in which
what is peculiar to a worker's data cancels. With a constant learning rate and whole gradients all workers come to the
optimum of the sum, where D-PSGD stops near it, the farther the more the data differ.

It needs one symmetric matrix W for the whole run with no eigenvalue at or below -1/3: `rule=lazy` has none below zero.
Metropolis weights on a ring of an even number of workers, four or more, are just on that border. Where messages are
lost the matrix is another one at every step, and weights may grow without bound.

A worker without a backward takes part with u = 0. The state is each worker's own: every worker saves and loads its
`run.state_dict()`. The correction takes as much memory as the weights.

Paper: Tang, Lian, Yan, Zhang, Liu, "D2: decentralized training over decentralized data" (2018).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from tutti.algorithms.base import OwnSteps
from tutti.errors import UserError
from tutti.exchanges.base import Exchange
from tutti.replica import Bucket
from tutti.spec import part

_LOOKS = 8  # steps whose matrices are compared
_ROUNDING = 1e-9


@dataclass
class D2(OwnSteps):
    exchange: Exchange = part(Exchange, "gossip(ring, rule=lazy)")

    def check(self, workers: int) -> None:
        super().check(workers)
        matrix, *others = [self.exchange.mixing(workers, step) for step in range(_LOOKS)]
        if matrix is None or any(other is None or not np.array_equal(other, matrix) for other in others):
            raise self._refusal("averages by one matrix, the same at every step", workers)
        if not (np.allclose(matrix, matrix.T) and np.allclose(matrix.sum(axis=1), 1)):
            raise self._refusal("averages with the same weights in both directions", workers)
        smallest = float(np.linalg.eigvalsh(matrix)[0])
        if smallest <= -1 / 3 + _ROUNDING:
            raise UserError(
                f"'d2' needs a mixing matrix with all eigenvalues above -1/3, and '{self.exchange}' over {workers} "
                f"workers has one of {smallest:.3f}; use rule=lazy"
            )

    def _refusal(self, need: str, workers: int) -> UserError:
        return UserError(
            f"'d2' needs an exchange that {need}, and '{self.exchange}' over {workers} workers does not; "
            "use gossip(ring, rule=lazy)"
        )

    def _meet(self, bucket: Bucket) -> None:
        stepped, correction = bucket.weights, self._memory[bucket.index]
        torch.add(stepped, correction, out=self._rooms[bucket.index][: bucket.layout.numel])
        agreed = self._agree(bucket)
        torch.sub(agreed, stepped, out=correction)
        bucket.weights.copy_(agreed)
