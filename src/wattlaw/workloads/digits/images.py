"""The handwritten digits that come with scikit-learn, read from its file.

scikit-learn is not imported, since that takes every rank as long as importing torch.
"""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np

from wattlaw.errors import NotAvailable

_FILE = Path("datasets", "data", "digits.csv.gz")
_SIDE, _GREYS = 8, 16


def images_and_labels() -> tuple[Any, Any]:
    """Return 1797 images, of shape (n, 1, 8, 8), float32 from 0 to 1, and their labels, int64.

    Raises
    ------
    NotAvailable
        scikit-learn is not installed, or keeps its file elsewhere.
    """
    spec = importlib.util.find_spec("sklearn")
    locations = spec.submodule_search_locations if spec else None
    path = Path(next(iter(locations or [""]))) / _FILE
    if not path.is_file():
        raise NotAvailable(
            f"{path}: no data file of scikit-learn; pip install 'wattlaw[train]' installs it"
        )
    table = np.loadtxt(path, delimiter=",", dtype=np.float32)
    images = table[:, :-1].reshape(-1, 1, _SIDE, _SIDE) / _GREYS
    return images, table[:, -1].astype(np.int64)


def stratified(labels: Any, size: int, seed: int) -> tuple[Any, Any]:
    """Return the places of a training and of a test part with the same share of every label.

    Parameters
    ----------
    labels
        Of all samples, of shape (n,).
    size
        Samples of the test part.
    seed
        Of the order within each label.
    """
    shuffled = np.random.default_rng(seed).permutation(len(labels))
    by_label = shuffled[np.argsort(labels[shuffled], kind="stable")]
    chosen = np.zeros(len(labels), dtype=bool)
    chosen[np.arange(size) * len(labels) // size] = True
    return np.sort(by_label[~chosen]), np.sort(by_label[chosen])
