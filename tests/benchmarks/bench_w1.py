"""Exact W1 at n = 1024 in dimension 64, cost matrix given: `w1_exact` against POT's `emd2`. Run by hand.

Interleaved in one process, so that both meet the same machine; medians; the ratio must be at least 1.5.
"""

from __future__ import annotations

import statistics
import sys
import time

import numpy as np

from shiftbound.transport import euclidean, w1_exact
from shiftbound.transport.exact import pot

SIZE, DIMENSION, ROUNDS, LEAST = 1024, 64, 9, 1.5


def main() -> int:
    ot = pot()
    rng = np.random.default_rng(0)
    weights = np.full(SIZE, 1 / SIZE)
    ours, theirs, apart = [], [], 0.0
    for _ in range(ROUNDS):
        cost = euclidean(rng.normal(size=(SIZE, DIMENSION)), rng.normal(size=(SIZE, DIMENSION)))
        start = time.perf_counter()
        value = w1_exact(cost)
        between = time.perf_counter()
        reference = float(ot.emd2(weights, weights, cost, numItermax=10**7))
        end = time.perf_counter()
        ours.append(between - start)
        theirs.append(end - between)
        apart = max(apart, abs(value - reference))
    ratio = statistics.median(theirs) / statistics.median(ours)
    print(f"w1_exact {statistics.median(ours):.3f} s, ot.emd2 {statistics.median(theirs):.3f} s, medians of {ROUNDS}")
    print(f"ratio {ratio:.2f} (at least {LEAST}), largest difference {apart:.1e} (at most 1e-9)")
    return 0 if ratio >= LEAST and apart <= 1e-9 else 1


if __name__ == "__main__":
    sys.exit(main())
