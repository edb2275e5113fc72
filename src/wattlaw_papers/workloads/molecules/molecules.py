"""Molecules in flat arrays, and batches of them."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from wattlaw.workloads.workload import Indices, Seeds

#: Returns the tensors of a batch's graph, from positions and molecules of its atoms.
Graph = Callable[[Tensor, Tensor], tuple[Tensor, ...]]


@dataclass(frozen=True)
class Molecules:
    """The atoms of all molecules, one molecule after the other."""

    z: npt.NDArray[np.uint8]  # atomic numbers, shape (atoms,)
    pos: npt.NDArray[np.float32]  # positions in angstrom, shape (atoms, 3)
    counts: npt.NDArray[np.int64]  # atoms of each molecule, shape (molecules,)
    targets: npt.NDArray[np.float32]  # properties in the order of ``Target``, (molecules, 19)

    def __len__(self) -> int:
        return len(self.counts)


class MoleculeData:
    """The ``chosen`` molecules as samples, repeated if there are more ``samples``, with the
    property of ``column`` as target; ``graph`` computes the graph of a batch."""

    #: The molecules are in memory, but loader processes make their graphs.
    reads_files = True

    def __init__(
        self, molecules: Molecules, chosen: Indices, column: int, graph: Graph, samples: int
    ) -> None:
        self._molecules, self._chosen, self._graph = molecules, chosen, graph
        self._first = np.cumsum(molecules.counts) - molecules.counts
        self._column, self._samples = column, samples

    def __len__(self) -> int:
        return self._samples

    def batch(self, indices: Indices, seeds: Seeds) -> tuple[Tensor, ...]:  # noqa: ARG002
        """Return z, pos, each atom's molecule, the tensors of the graph, and the targets (n,)."""
        source = self._molecules
        which = self._chosen[indices % len(self._chosen)]
        counts = source.counts[which]
        ends = np.cumsum(counts)
        atoms = np.repeat(self._first[which] - (ends - counts), counts) + np.arange(ends[-1])
        pos = torch.from_numpy(source.pos[atoms])
        batch = torch.from_numpy(np.repeat(np.arange(len(which)), counts))
        return (
            torch.from_numpy(source.z[atoms].astype(np.int64)),
            pos,
            batch,
            *self._graph(pos, batch),
            torch.from_numpy(source.targets[which, self._column]),
        )
