"""Tests of a power law's assumptions on its residuals."""

from dataclasses import asdict, dataclass

import numpy as np
from scipy import special, stats
from statsmodels.stats.diagnostic import het_breuschpagan

from wattlaw.analysis.laws.observations import ROUNDING, Floats
from wattlaw.analysis.levels import ERROR
from wattlaw.analysis.result import Result

_WORDS = {
    "normality_p": "they are not normal",
    "curvature_p": "they curve with ln N",
    "heteroscedasticity_p": "their spread changes with N",
}


@dataclass(frozen=True)
class Diagnostics(Result):
    """p values of tests on residuals in logarithms; None where the data allow no test.

    ``normality_p``
        Shapiro & Wilk 1965, Biometrika 52, 591-611.
    ``curvature_p``
        t test of a term (ln N)^2 added to the law.
    ``heteroscedasticity_p``
        Breusch & Pagan's test of a spread that changes with ln N, in Koenker's form (1981, Journal
        of Econometrics 17, 107-112).
    """

    properties = ("sentence",)

    normality_p: float | None
    curvature_p: float | None
    heteroscedasticity_p: float | None

    @property
    def sentence(self) -> str:
        """Return one line: what the tests found at 5 %; each may err in 1 of 20 sound laws."""
        values = asdict(self)
        if all(value is None for value in values.values()):
            return "too few runs, or no scatter, to test the residuals"
        failures = [
            f"{description} (p = {values[name]:.2g})"
            for name, description in _WORDS.items()
            if values[name] is not None and values[name] < ERROR
        ]
        return "residuals: " + ("; ".join(failures) or "consistent with the law")


def diagnose(x: Floats, residuals: Floats) -> Diagnostics:
    """Return the tests of a power law's residuals; ``x`` and ``residuals`` have shape (n,).

    At least four runs are needed, and residuals that are more than rounding.
    """
    n = len(x)
    if n < 4 or np.abs(residuals).max() <= ROUNDING:
        return Diagnostics(None, None, None)
    design = np.column_stack([np.ones(n), np.log(x)])
    return Diagnostics(
        normality_p=float(stats.shapiro(residuals).pvalue),
        curvature_p=_curvature(design, residuals),
        heteroscedasticity_p=float(het_breuschpagan(residuals, design)[1]),
    )


def _curvature(design: Floats, residuals: Floats) -> float:
    """Return the p value of the added term: what of it the law does not have, on the residuals."""
    added = design[:, 1] ** 2
    added = added - design @ np.linalg.lstsq(design, added, rcond=None)[0]
    gain = float(added @ residuals) ** 2 / float(added @ added)
    df = len(residuals) - 3
    left = max(float(residuals @ residuals) - gain, 0.0)
    return float(special.fdtrc(1, df, gain * df / left)) if left > 0 else 0.0
