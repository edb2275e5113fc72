"""How well a law fits: the criterion that laws are compared by, and the test against means."""

from scipy import special


def aicc(log_likelihood: float, n: int, k: int) -> float | None:
    """Return -2 ln L + 2 k + 2 k (k + 1) / (n - k - 1); None if ``n <= k + 1``.

    Akaike's criterion as corrected for few values by Hurvich & Tsai 1989, Biometrika 76, 297-307.
    ``k`` counts the noise too.
    """
    if n <= k + 1:
        return None
    return -2 * log_likelihood + 2 * k + 2 * k * (k + 1) / (n - k - 1)


def f_test_p(between: float, between_df: int, within: float, within_df: int) -> float:
    """Return p of F = (between / its df) / (within / its df), of two sums of squares.

    Small where what groups differ by, or a law leaves of their means, is more than their repeats
    explain (Draper & Smith 1998, "Applied Regression Analysis", section 2.1).
    """
    ratio = (between / between_df) / (within / within_df)
    return float(special.fdtrc(between_df, within_df, ratio))
