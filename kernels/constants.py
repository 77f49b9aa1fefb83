"""Constants of the output heads that the model's definition and all kernels share.

``kernels/native/distribution.h`` repeats them in C++.
"""

from __future__ import annotations

MIXTURES = 10  # logistics in a mixture (Salimans et al. 2017)
MIN_LOG_SCALE = -7.0  # lower bound of a logistic's log scale
MIN_WARM_LOG_SCALE = -9.5  # lower bound after applying temperature: all mass is in one bin already
MIN_LOG_PROB = -1e4  # lower bound of a value's log probability, so guidance subtracts no infinities
