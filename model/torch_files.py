"""PyTorch files of plain tensors, such as the states of training runs."""

from __future__ import annotations

import io
import re
import warnings
from pathlib import Path
from typing import Any

import torch

from scanline.model.checkpoint import CheckpointError

SAVE_TENSORS = "save the weights alone, with torch.save(model.state_dict(), FILE)"

# The class of an object in a pickle that torch refuses to load, from the message of its error.
_CLASS = re.compile(r"GLOBAL (\S+)")
_CLASS_TITLES = {
    "numpy._core.multiarray.scalar": "a NumPy scalar",
    "numpy.core.multiarray.scalar": "a NumPy scalar",
    "numpy._core.multiarray._reconstruct": "a NumPy array",
    "numpy.core.multiarray._reconstruct": "a NumPy array",
}


def load_torch_file(path: Path, device: torch.device | str = "cpu") -> Any:
    """Load a PyTorch file without running code from it; raise ``CheckpointError`` on failure."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about odd pickles, which fail below if they matter
            # A pipe cannot be read in torch's order.
            file = path if path.is_file() else io.BytesIO(path.read_bytes())
            return torch.load(file, map_location=device, weights_only=True)
    except FileNotFoundError:
        raise CheckpointError(f"there is no file {path}") from None
    except Exception as error:  # a damaged pickle can raise anything
        # First sentence only: torch goes on with advice to run the code in the file.
        message = str(error) or type(error).__name__
        reason = message.splitlines()[0].split(". ")[0]
        if found := _CLASS.search(message):
            title = _CLASS_TITLES.get(found[1], f"an object of {found[1]}")
            reason = (
                f"it holds {title}, which is not loaded because it may run code; {SAVE_TENSORS}"
            )
        raise CheckpointError(f"{path} is not a PyTorch file of plain tensors: {reason}") from None
