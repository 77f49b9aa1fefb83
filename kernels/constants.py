"""Names and constants that the model's definition and all kernels share; imports no torch.

``kernels/native/distribution.h`` and ``functions.h`` repeat the constants in C++.
"""

from __future__ import annotations

from typing import Literal, get_args

AttentionKind = Literal["linear", "softmax", "lsh-1", "lsh-4", "lsh-8"]
ATTENTION_KINDS: tuple[AttentionKind, ...] = get_args(AttentionKind)
FeatureMap = Literal["elu", "relu", "polynomial", "inhomogeneous", "random", "fourier"]
FEATURE_MAPS: tuple[FeatureMap, ...] = get_args(FeatureMap)

ATTENTION_EPS = 1e-6  # ε in the denominator of linear attention
MIXTURES = 10  # logistics in a mixture (Salimans et al. 2017)
MIN_LOG_SCALE = -7.0  # lower bound of a logistic's log scale
MIN_WARM_LOG_SCALE = -9.5  # lower bound after applying temperature: all mass is in one bin already
MIN_LOG_PROB = -1e4  # lower bound of a value's log probability, so guidance subtracts no infinities
