"""DimeNet's functions of distance and angle, in numbers instead of formulas.

PyTorch Geometric derives the same functions with sympy whenever a net is made, which takes many
seconds, and evaluates them one by one.
"""

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from wattlaw.workloads.molecules.pyg import dimenet

_Array = npt.NDArray[np.float64]


class SphericalBasis(nn.Module):
    """Spherical Bessel functions of distances times spherical harmonics of angles.

    Gasteiger et al. 2020 (arXiv 2003.03123), equation 7, with the envelope of equation 8. It has
    no parameters, and keeps nothing in a state dict.

    Parameters
    ----------
    spherical, radial
        How many orders there are, and how many functions of each.
    cutoff
        The distance at which all functions reach zero.
    """

    zeros: torch.Tensor
    norms: torch.Tensor
    harmonics: torch.Tensor

    def __init__(self, spherical: int, radial: int, cutoff: float) -> None:
        super().__init__()
        self._cutoff = cutoff
        self._envelope = dimenet.Envelope(5)
        zeros = bessel_zeros(spherical, radial)
        norms = np.stack(
            [np.sqrt(2) / np.abs(_bessel(row, order + 1)) for order, row in enumerate(zeros)]
        )
        harmonics = np.sqrt((2 * np.arange(spherical) + 1) / (4 * np.pi))
        for name, array in (("zeros", zeros), ("norms", norms), ("harmonics", harmonics)):
            self.register_buffer(name, torch.from_numpy(array), persistent=False)

    def forward(self, dist: torch.Tensor, angle: torch.Tensor, kj: torch.Tensor) -> torch.Tensor:
        """Return the functions for each triplet, order by order.

        Parameters
        ----------
        dist
            Length of each edge, shape (edges,).
        angle
            Angle of each triplet, shape (triplets,).
        kj
            Each triplet's first edge, shape (triplets,).

        Returns
        -------
        torch.Tensor
            Shape (triplets, orders x functions).
        """
        share = dist / self._cutoff
        envelope: torch.Tensor = self._envelope(share)
        by_edge = self._by_distance(share) * envelope[:, None, None]
        by_angle = _legendre(angle.cos(), len(self.harmonics)) * self.harmonics.to(angle.dtype)
        return (by_edge[kj] * by_angle.unsqueeze(2)).flatten(1)

    def _by_distance(self, share: torch.Tensor) -> torch.Tensor:
        """Return j_l(z_ln x) times its norm, shape (edges, orders, functions).

        In double precision: for short distances, differences of large numbers are taken.
        """
        x = share.double()[:, None, None] * self.zeros
        here = x.sin() / x
        found = [here[:, 0]]
        x = x[:, 1:]
        before, here = here[:, 1:], here[:, 1:] / x - x.cos() / x
        for order in range(1, len(self.zeros)):
            found.append(here[:, 0])
            x, before, here = x[:, 1:], before[:, 1:], here[:, 1:]
            before, here = here, here * ((2 * order + 1) / x) - before
        return (torch.stack(found, dim=1) * self.norms).to(share.dtype)


def bessel_zeros(orders: int, count: int) -> _Array:
    """Return the first positive zeros of the spherical Bessel functions of the first kind.

    The zeros of an order lie between those of the order below it, so bisection finds them all.

    Parameters
    ----------
    orders
        How many orders, from 0 up.
    count
        How many zeros of each.

    Returns
    -------
    numpy.ndarray
        Shape (orders, count).
    """
    zeros: _Array = np.arange(1.0, count + orders) * np.pi
    rows = [zeros[:count]]
    for order in range(1, orders):
        low, high = zeros[:-1].copy(), zeros[1:].copy()
        sign = np.sign(_bessel(low, order))
        for _ in range(60):
            middle = (low + high) / 2
            left = np.sign(_bessel(middle, order)) == sign
            low, high = np.where(left, middle, low), np.where(left, high, middle)
        zeros = (low + high) / 2
        rows.append(zeros[:count])
    return np.stack(rows)


def _bessel(x: _Array, order: int) -> _Array:
    """Return j_order(x); upward recursion is exact enough for x of about the order and above."""
    here, after = np.sin(x) / x, np.sin(x) / x**2 - np.cos(x) / x
    for lower in range(1, order + 1):
        here, after = after, (2 * lower + 1) / x * after - here
    return here


def _legendre(x: torch.Tensor, orders: int) -> torch.Tensor:
    """Return the Legendre polynomials of the first orders, shape (len(x), orders)."""
    found = [torch.ones_like(x), x]
    for order in range(1, orders - 1):
        found.append((x * found[-1] * (2 * order + 1) - found[-2] * order) / (order + 1))
    return torch.stack(found[:orders], dim=1)
