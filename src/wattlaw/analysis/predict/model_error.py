"""What the model of a step misses near measured settings, and draws of it at many settings.

No model of a step is exact, and its error changes little between similar settings (Kennedy and
O'Hagan 2001, doi 10.1111/1467-9868.00294). The error is correlated between settings by their
distance: predictions near measured settings follow them, and those far away have all of its spread.

A fit takes the errors of measured powers as correlated too (``Errors``).

For ``draw_errors``, the error of a log is a sum of four parts: one that placements share, one that
batches and limits share, one that changes with both, and one of each setting alone. How large each
is differs between jobs: a job's kernels may suit one batch and not the next, or its network one
number of nodes. Every draw of the posterior gets sizes in proportion to their likelihood
(``_SIZES`` has their prior), and then an error that agrees with its residuals (Matheron's rule;
Wilson et al. 2021, jmlr.org/papers/v22/20-1260.html).
"""

from collections.abc import Hashable, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from wattlaw.analysis.predict.layout import Layout
from wattlaw.analysis.predict.observation import Floats

#: Standard deviations, in logs, of the model's error of times and of powers.
TIME_ERROR, POWER_ERROR = 0.02, 0.025
#: Standard deviation, in logs, of the power of a run around that of its setting.
POWER_NOISE = 0.006
#: Distances, in logs, at which the correlation is exp(-1/2): of GPUs, nodes, samples and number of
#: micro-batches, power limit and clock limit.
_DISTANCES = (0.7, 0.7, 0.7, 0.7, 0.3, 0.3)
#: No limit counts as this times the highest limit or power.
_FREE = 1.2


def independence(layout: Layout) -> Floats:
    """Return the weight of each observation: 1 over the sum of its correlations with all.

    The model's error is the same for repeats and nearly the same for similar settings. Many of them
    are no more evidence about the parameters than few.
    """
    (rows,) = features(layout)
    weights: Floats = 1 / correlation(rows, rows).sum(1)
    return weights


def features(*layouts: Layout) -> list[Floats]:
    """Return the coordinates of settings between which errors are similar, for each layout."""
    limits_w = np.concatenate([layout.power_limit_w for layout in layouts])
    highest_w = max([layouts[0].reference.power_w, *limits_w[np.isfinite(limits_w)]])
    rows = []
    for layout in layouts:
        watts = np.minimum(layout.power_limit_w, _FREE * float(highest_w))
        clock = np.minimum(layout.clock_limit_mhz / layout.reference.clock_mhz, 1.0)
        amounts = layout.gpus, layout.nodes, layout.micro, layout.parts, watts, clock
        places = [np.log(x) / far for x, far in zip(amounts, _DISTANCES, strict=True)]
        rows.append(np.column_stack([*places, layout.precision * 10.0]))
    return rows


def correlation(one: Floats, other: Floats) -> Floats:
    squares = ((one[:, None] - other[None]) ** 2).sum(2)
    result: Floats = np.exp(-squares / 2)
    return result


Indices = npt.NDArray[np.int64]

#: The columns of features that place a setting, and those of what a GPU does.
_PLACEMENT, _LOAD = slice(0, 2), slice(2, None)
#: GPU counts share errors over this many times the distance within which all is similar.
_REACH = 2.0
#: Standard deviations of each part relative to the usual error of the model, and their weights:
#: of placements, of batches and limits, of both, and of each setting.
_SIZES = (
    ((0.3, 0.25), (1.0, 0.4), (3.0, 0.25), (8.0, 0.1)),
    ((0.3, 0.2), (1.0, 0.35), (3.0, 0.3), (8.0, 0.15)),
    ((0.1, 0.35), (0.5, 0.4), (1.5, 0.25)),
    ((0.1, 0.1), (0.25, 0.2), (0.5, 0.35), (1.0, 0.25), (2.0, 0.1)),
)
#: Repeats of a run differ by this share of the usual error; what differs more is of the setting.
_REPEATS = 0.5
#: Observations from which the sizes are learned, and settings whose powers a fit uses.
_MOST = 120
#: Draws that show which sizes are possible: those whose log posterior is less than this below the
#: highest in any of them.
_TRIAL, _UNLIKELY = 100, 9.0


#: How large the errors of a job may be, relative to the usual ones, all equally likely; and the
#: parts of them that change with placement and load, and with the setting.
_SCALES, _BOTH, _OWN = (0.2, 0.5, 1.0, 2.0, 4.0), 0.5, 0.25


class Errors(NamedTuple):
    """The distribution of the model's errors of observations: of unknown size, and correlated.

    A mixture of normal distributions, one for each size. Errors that similar settings share say
    little about the parameters, and differences between them much. Of many settings, some are used.
    """

    basis: Floats  # in which errors are independent, shape (observations, settings)
    variances: Floats  # in that basis, shape (sizes, settings)

    @classmethod
    def of(cls, layout: Layout, usual: float) -> "Errors":
        (rows,) = features(layout)
        _, first, which, repeats = np.unique(
            rows, axis=0, return_index=True, return_inverse=True, return_counts=True
        )
        few = _few(first.size)
        rows, repeats = rows[first[few]], repeats[few]
        mean = (which.ravel()[:, None] == few) / repeats
        place, load = rows[:, _PLACEMENT] / _REACH, rows[:, _LOAD]
        placement, load = correlation(place, place), correlation(load, load)
        shape = placement + load + _BOTH**2 * placement * load + _OWN**2 * np.eye(few.size)
        noise = _REPEATS * usual / np.sqrt(layout.gpus[first[few]] * repeats)
        sizes, vectors = np.linalg.eigh(shape / noise[:, None] / noise)
        scales = (usual * np.array(_SCALES)[:, None]) ** 2
        return cls(mean / noise @ vectors, scales * np.maximum(sizes, 0.0) + 1.0)

    def log_density(self, residuals: Floats) -> Floats:
        """Return the log density, up to a constant, of each row of residuals."""
        squares = (residuals @ self.basis) ** 2
        each = squares @ (1 / self.variances).T + np.log(self.variances).sum(1)
        return np.asarray(np.logaddexp.reduce(-0.5 * each, axis=1))


def draw_errors(
    layouts: tuple[Layout, Layout],
    settings: tuple[Sequence[Hashable], Sequence[Hashable]],
    residuals: Floats,
    usual: float,
    dice: np.random.Generator,
    *,
    luck: tuple[Floats, Floats] | None = None,
    placements: tuple[Sequence[Hashable], Sequence[Hashable]] | None = None,
    noise: float = 0.0,
    is_mean_of_gpus: bool = False,
) -> tuple[Floats, Floats]:
    """Return errors of wanted settings that agree with the residuals of the observations.

    Pairs are of the observations and of what is wanted. ``residuals`` are logarithms of what was
    measured over the model's value, shape (draws, observations). ``usual`` is the usual standard
    deviation of the model's error in logs, ``noise`` that of a run, if repeats have shown it.
    ``luck`` has those of what an allocation of nodes adds, and ``placements`` the placement of
    each: it counts as an error of the placement, since a training is in one allocation too, and its
    batch and limit do not choose it. With ``is_mean_of_gpus``, values are means over GPUs that
    differ, so that repeats differ the less the more there are.

    Returned are errors in logs, shape (draws, wanted), and the standard deviation of a run,
    (wanted,).
    """
    seen = len(settings[0])
    rows = np.vstack(features(*layouts))
    placement, load = rows[:, _PLACEMENT] / _REACH, rows[:, _LOAD]
    own, place = _numbered(settings), _numbered(placements or settings)
    spread = np.zeros(len(own)) if luck is None else np.concatenate(luck)
    near, alike = correlation(placement[:seen], placement), correlation(load[:seen], load)
    same_place = (place[:seen, None] == place) * spread[:seen, None] * spread
    # Covariances of each part at size 1, and of what an allocation adds.
    parts = np.array([near, alike, near * alike, own[:seen, None] == own, same_place])
    sizes, noises, weights = _sizes(usual, noise)
    shares = [
        1 / np.sqrt(item.gpus) if is_mean_of_gpus else np.ones(len(item.gpus)) for item in layouts
    ]
    by_chance = (noises[:, None] * shares[0]) ** 2
    chosen = _choose(parts, sizes, by_chance, weights, residuals, dice)
    each = _prior_draws(placement, load, own, len(residuals), dice)
    shared = spread * dice.standard_normal((len(residuals), int(place.max()) + 1))[:, place]
    widths = sizes[chosen].T[:, :, None]
    drawn = sum(width * part for width, part in zip(widths, each, strict=True)) + shared
    order = np.argsort(chosen, kind="stable")
    missed = np.empty((len(residuals), seen))
    missed[order] = dice.standard_normal(missed.shape)
    missed = residuals - drawn[:, :seen] - np.sqrt(by_chance[chosen]) * missed
    errors = drawn[:, seen:]
    for at in np.split(order, np.flatnonzero(np.diff(chosen[order])) + 1):
        size = chosen[at[0]]
        covariance = _covariances(sizes[size], parts)
        matrix = covariance[:, :seen] + np.diag(by_chance[size])
        errors[at] += missed[at] @ np.linalg.solve(matrix, covariance[:, seen:])
    return errors, shares[1] * float(np.median(noises[chosen]))


def _few(count: int) -> Indices:
    return np.unique(np.linspace(0, max(count - 1, 0), min(count, _MOST)).round().astype(int))


def _numbered(names: tuple[Sequence[Hashable], Sequence[Hashable]]) -> Indices:
    numbers = {name: index for index, name in enumerate(dict.fromkeys([*names[0], *names[1]]))}
    return np.array([numbers[name] for name in (*names[0], *names[1])])


def _sizes(usual: float, least_noise: float) -> tuple[Floats, Floats, Floats]:
    """Return the sizes of each combination, shape (combinations, parts), its noise and weight."""
    levels, weights = np.moveaxis(np.array([*product(*_SIZES)]), 2, 0)
    sizes = usual * levels
    noises = np.minimum(sizes[:, 3], _REPEATS * usual)
    sizes[:, 3] = np.sqrt(sizes[:, 3] ** 2 - noises**2)
    return sizes, np.maximum(noises, least_noise), weights.prod(1)


def _covariances(sizes: Floats, parts: Floats) -> Floats:
    return np.asarray(np.einsum("...k,kij->...ij", sizes**2, parts[:-1]) + parts[-1])


def _choose(
    parts: Floats, sizes: Floats, by_chance: Floats, weights: Floats, residuals: Floats,
    dice: np.random.Generator,
) -> Indices:  # fmt: skip
    few = _few(residuals.shape[1])
    shown = np.ascontiguousarray(residuals[:, few].T)
    own = (by_chance[:, few] + 1e-9)[:, None] * np.eye(few.size)
    roots = np.linalg.cholesky(_covariances(sizes, parts[:, few[:, None], few]) + own)
    inverses = np.linalg.inv(roots)
    constants = np.log(weights) - np.log(np.diagonal(roots, axis1=1, axis2=2)).sum(1)
    # Squares are sums of products of two residuals, each pair of different ones twice.
    one, other = np.tril_indices(few.size)
    factors = (inverses.transpose(0, 2, 1) @ inverses)[:, one, other]
    factors *= np.where(one == other, -0.5, -1.0)

    def scores(which: Indices, residuals: Floats) -> Floats:
        products = factors[which] @ (residuals[one] * residuals[other])
        return np.asarray(products + constants[which, None])

    # Most sizes are unlikely in all draws, which some of the draws show.
    trial = scores(np.arange(len(sizes)), shown[:, :: max(1, shown.shape[1] // _TRIAL)])
    likely = np.flatnonzero((trial > trial.max(0) - _UNLIKELY).any(1))
    blocks = (shown[:, at : at + _TRIAL] for at in range(0, shown.shape[1], _TRIAL))
    values = np.hstack([scores(likely, block) for block in blocks])
    for row in range(likely.size):  # as ``dice.gumbel``, in less time
        values[row] -= np.log(-np.log(1 - dice.random(len(residuals))))
    return np.asarray(likely[values.argmax(0)])


def _prior_draws(
    placement: Floats, load: Floats, own: Indices, draws: int, dice: np.random.Generator
) -> list[Floats]:
    """Return draws of each part with unit variance, shape (draws, settings)."""
    places, at_place = np.unique(placement, axis=0, return_inverse=True)
    loads, at_load = np.unique(load, axis=0, return_inverse=True)
    place_root, load_root = _root(places), _root(loads)
    both: Floats = place_root @ dice.standard_normal((draws, len(places), len(loads)))
    both = both @ load_root.T
    return [
        (dice.standard_normal((draws, len(places))) @ place_root.T)[:, at_place.ravel()],
        (dice.standard_normal((draws, len(loads))) @ load_root.T)[:, at_load.ravel()],
        both[:, at_place.ravel(), at_load.ravel()],
        dice.standard_normal((draws, int(own.max()) + 1))[:, own],
    ]


def _root(rows: Floats) -> Floats:
    matrix = correlation(rows, rows) + 1e-6 * np.eye(rows.shape[0])
    return np.asarray(np.linalg.cholesky(matrix), dtype=np.float64)
