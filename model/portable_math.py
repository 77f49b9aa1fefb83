"""Elementary functions of float64 arrays with the same results on every machine.

NumPy's and PyTorch's own differ in the last digit between CPUs and versions. These use only
additions, multiplications and roundings, which IEEE 754 defines, and have errors of about one unit
in the last place. Sums are sequential, because the order of ``numpy.sum`` is not documented.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_LOG2_E = 1.4426950408889634
# ln 2 and π/2 in parts. The products of all but the last part and an integer are exact.
_LN2_PARTS = (0.6931471805592082, 7.371002565167799e-13)
_HALF_PI_PARTS = (1.570796325802803, 9.920935791635221e-10, 5.170182981794105e-19)
_MIN_EXPONENT = -700.0


def exp(x: Floats) -> Floats:
    """Return e^x for x ≤ 700; 0 for x < -700."""
    n = np.rint(x.clip(_MIN_EXPONENT) * _LOG2_E)
    r = x.clip(_MIN_EXPONENT)
    for part in _LN2_PARTS:
        r = r - n * part
    series = _series(r, [1 / math.factorial(k) for k in range(14)])
    result: Floats = np.where(x < _MIN_EXPONENT, 0.0, np.ldexp(series, n.astype(np.int64)))
    return result


def sin_cos(x: Floats) -> tuple[Floats, Floats]:
    """Return sin x and cos x, for |x| ≤ 2²³."""
    n = np.rint(x * (2 / math.pi))
    r = x
    for part in _HALF_PI_PARTS:
        r = r - n * part
    square = r * r
    sine = r * _series(square, [(-1) ** k / math.factorial(2 * k + 1) for k in range(9)])
    cosine = _series(square, [(-1) ** k / math.factorial(2 * k) for k in range(10)])
    quadrant = n.astype(np.int64) % 4
    swapped = quadrant % 2 == 1
    sines = np.where(swapped, cosine, sine) * np.where(quadrant < 2, 1.0, -1.0)
    cosines = np.where(swapped, sine, cosine) * np.where(quadrant % 3 == 0, 1.0, -1.0)
    return sines, cosines


def running_sum(x: Floats) -> Floats:
    """Return the sums of the first 0, 1, 2 … elements of the last axis, added in order."""
    zeros = np.zeros((*x.shape[:-1], 1))
    result: Floats = np.add.accumulate(np.concatenate([zeros, x], -1), axis=-1)
    return result


def _series(x: Floats, coefficients: list[float]) -> Floats:
    """Return Σ coefficients[k] · x^k."""
    result = np.full_like(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        result = result * x + coefficient
    return result
