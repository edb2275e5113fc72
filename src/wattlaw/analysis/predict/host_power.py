"""Power of machines beside their GPUs: a part for each node, and a part for each GPU."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from wattlaw.analysis.predict.observation import Floats
from wattlaw.study.setting import Setting

#: The least standard deviation, in logs: no two machines draw the same power.
_LEAST_SPREAD = 0.02


@dataclass(frozen=True)
class HostPower:
    """Watts of processors, memory and so on, fitted to runs: ``node_w`` nodes + ``gpu_w`` GPUs.

    ``spread`` is the standard deviation of runs, in logs. ``root`` is a square root of the
    covariance of the parts: runs on full nodes alone do not tell them apart.
    """

    node_w: float
    gpu_w: float
    spread: float
    root: Floats = field(default_factory=lambda: np.zeros((2, 2)), repr=False, compare=False)

    @classmethod
    def fit(cls, settings: Sequence[Setting], watts: Sequence[float]) -> "HostPower":
        """Return the parts, neither below 0, with the least relative squares.

        ``watts`` are those of all nodes of each run without its GPUs, above 0.

        Examples
        --------
        >>> runs = [Setting(1, nodes=1), Setting(4, nodes=1)]
        >>> HostPower.fit(runs, [110.0, 140.0])
        HostPower(node_w=100.0, gpu_w=10.0, spread=0.02)
        """
        parts = _parts(settings)
        y = np.asarray(watts, dtype=float)
        relative, one = parts / y[:, None], np.ones_like(y)
        fits = [np.linalg.lstsq(relative, one, rcond=None)[0]]
        for column in (0, 1):  # if one part is below 0, the best fit has 0 there
            x = relative[:, column]
            alone = np.zeros(2)
            alone[column] = x.sum() / (x @ x) if x.any() else 0.0
            fits.append(alone)
        possible = [fit for fit in fits if (fit >= 0).all() and fit.any()]
        node_w, gpu_w = min(possible, key=lambda fit: float(((relative @ fit - one) ** 2).sum()))
        residuals = np.log(y / (parts @ (node_w, gpu_w)))
        spread = max(_LEAST_SPREAD, float(np.sqrt((residuals**2).sum() / max(1, y.size - 2))))
        # Before any run, a part may be anything up to all of the power.
        prior = np.diag(np.maximum(relative.mean(0), 1e-9) ** 2)
        root = np.linalg.inv(np.linalg.cholesky(relative.T @ relative / spread**2 + prior)).T
        return cls(round(float(node_w), 9), round(float(gpu_w), 9), spread, root)

    def draws(self, settings: Sequence[Setting], count: int, seed: int) -> Floats:
        """Return draws of the power of future runs, shape (``count``, settings)."""
        dice = np.random.default_rng([seed, 3])
        noise = self.spread * dice.standard_normal((count, len(settings)))
        best = np.array([self.node_w, self.gpu_w])
        drawn = best + dice.standard_normal((4 * count, 2)) @ self.root.T
        possible = np.vstack([best, drawn[(drawn >= 0).all(1)]])
        watts = np.resize(possible[::-1], (count, 2)) @ _parts(settings).T
        return np.asarray(watts * np.exp(noise))

    def mean_w(self, settings: Sequence[Setting]) -> Floats:
        return np.asarray(_parts(settings) @ (self.node_w, self.gpu_w))


def _parts(settings: Sequence[Setting]) -> Floats:
    return np.array([[item.nodes or 0, item.gpus] for item in settings], dtype=float)
