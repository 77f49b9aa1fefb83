"""Elementary functions that are the same on every machine: accuracy and exact bits."""

from __future__ import annotations

import hashlib

import numpy as np

from scanline.model.portable_math import exp, running_sum, sin_cos

EXPONENTS = np.linspace(-699.0, 300.0, 20_001)
ANGLES = np.concatenate([np.linspace(-7.0, 7.0, 20_001), np.linspace(-8e6, 8e6, 20_001)])
# Of the results of EXPONENTS and ANGLES.
DIGEST = "ad7f29330be7fa16"


def test_exp() -> None:
    np.testing.assert_allclose(exp(EXPONENTS), np.exp(EXPONENTS), rtol=5e-16)
    assert exp(np.array([-1e300, -701.0, 0.0])).tolist() == [0.0, 0.0, 1.0]


def test_sin_cos() -> None:
    sines, cosines = sin_cos(ANGLES)
    np.testing.assert_allclose(sines, np.sin(ANGLES), rtol=0, atol=5e-16)
    np.testing.assert_allclose(cosines, np.cos(ANGLES), rtol=0, atol=5e-16)


def test_running_sum_adds_in_order() -> None:
    """In another order the ones would not be lost."""
    values = np.array([[1e16, 1.0, 1.0, -1e16], [1.0, 2.0, 3.0, 4.0]])
    assert running_sum(values).tolist() == [[0, 1e16, 1e16, 1e16, 0], [0, 1, 3, 6, 10]]
    assert running_sum(np.zeros((2, 0))).tolist() == [[0.0], [0.0]]


def test_same_bits_on_every_machine() -> None:
    results = (exp(EXPONENTS), *sin_cos(ANGLES))
    found = hashlib.sha256(b"".join(one.tobytes() for one in results)).hexdigest()[:16]
    assert found == DIGEST
