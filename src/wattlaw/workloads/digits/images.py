"""The handwritten digits that come with scikit-learn, read from its file.

scikit-learn itself is not imported: that takes as long as torch, and every rank would wait for it.
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
    found = importlib.util.find_spec("sklearn")
    places = found.submodule_search_locations if found else None
    path = Path(next(iter(places or [""]))) / _FILE
    if not path.is_file():
        told = 'the digits of scikit-learn are not there; try: pip install "wattlaw[train]"'
        raise NotAvailable(f"{path}: {told}")
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
