"""Numbers of the heads that every backend must share: the model's definition, and the kernels.

``kernels/native/distribution.h`` has them in C++.
"""

from __future__ import annotations

MIXTURES = 10  # logistics in a mixture (Salimans et al. 2017)
MIN_LOG_SCALE = -7.0  # of a logistic
MIN_WARM_LOG_SCALE = -9.5  # of one that is tempered: all of it is in one bin already
MIN_LOG_PROB = -1e4  # of a value, so that guidance never subtracts infinities
