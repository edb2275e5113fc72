"""``schnet``, ``dimenet``: PyTorch Geometric's nets on QM9 or on synthetic molecules.

Sources of molecules:

``synthetic``
    Molecules that are drawn from a fixed seed and kept in memory; no file is read.
``qm9``
    ``DATA/raw/qm9_v3.pt``, the file that ``torch_geometric.datasets.QM9(DATA)`` downloads if rdkit
    is not installed. It is read once, into the cache of the store.

The settings are those of Frey et al. 2022: 128 channels, 6 blocks, Adam at a constant 1e-3. The
paper states neither the predicted property (here ``U0``, the energy at 0 K) nor the loss (here
the mean absolute error of the property in units of its standard deviation).
"""

from functools import partial
from typing import Literal, get_args

from pydantic import Field

from wattlaw.workloads.workload import Entry, whole_number
from wattlaw_papers.workloads.data_sets import DataOptions, work_at_full_size

#: QM9's properties in the order of PyTorch Geometric's columns. Energies (and homo, lumo, gap and
#: zpve) are in eV, mu in D, alpha in a0^3, r2 in a0^2, Cv in cal/(mol K), and A, B, C in GHz.
Target = Literal[
    "mu", "alpha", "homo", "lumo", "gap", "r2", "zpve", "U0", "U", "H", "G", "Cv",
    "U0_atom", "U_atom", "H_atom", "G_atom", "A", "B", "C",
]  # fmt: skip


class Options(DataOptions):
    source: Literal["synthetic", "qm9"] = Field(default="synthetic", description="synthetic or qm9")
    data: str | None = Field(
        default=None, description="the folder that contains raw/qm9_v3.pt, for source qm9"
    )
    target: Target = Field(
        default="U0", description=f"the property to predict: {', '.join(get_args(Target))}"
    )
    train_samples: int = whole_number(
        110_000,
        "training molecules; a file with fewer than these and evaluation_samples is split in the "
        "same proportion",
    )
    evaluation_samples: int = whole_number(10_000, "evaluation molecules")
    lr: float = Field(default=1e-3, gt=0, description="Adam's learning rate (a number > 0)")
    hidden_channels: int = whole_number(128, "channels of atoms and messages", high=1024)


class SchNetOptions(Options):
    filters: int = whole_number(128, "filters", high=1024)
    interactions: int = whole_number(6, "interaction blocks", high=64)
    gaussians: int = whole_number(50, "basis functions of a distance", 2, 1024)
    cutoff: float = Field(
        default=10.0, gt=0, description="largest distance of neighbours in angstrom (> 0)"
    )


class DimeNetOptions(Options):
    blocks: int = whole_number(6, "interaction blocks", high=64)
    bilinear: int = whole_number(8, "size of the bilinear layers", high=128)
    spherical: int = whole_number(7, "spherical harmonics of an angle", 2, 12)
    radial: int = whole_number(6, "Bessel functions of a distance", high=64)
    cutoff: float = Field(
        default=5.0, gt=0, description="largest distance of neighbours in angstrom (> 0)"
    )


_regression = partial(
    Entry,
    metric="mae",
    better="lower",
    make_data="wattlaw_papers.workloads.molecules.synthetic_molecules:make_data",
    real_input="wattlaw_papers.workloads.real_input:molecules",
    modules=("torch", "torch_geometric"),
    extra="molecules",
)
SCHNET = _regression(
    name="schnet",
    summary="SchNet on QM9 (its file, or synthetic molecules)",
    parameters=455_809,
    options=SchNetOptions,
    factory="wattlaw_papers.workloads.molecules.regression:SchNetOnQm9",
    work=work_at_full_size(
        2.641e8, "hidden_channels", "cutoff", "filters", "interactions", "gaussians"
    ),
)
DIMENET = _regression(
    name="dimenet",
    summary="DimeNet on QM9 (its file, or synthetic molecules)",
    parameters=2_100_070,
    options=DimeNetOptions,
    factory="wattlaw_papers.workloads.molecules.regression:DimeNetOnQm9",
    work=work_at_full_size(
        2.059e10, "hidden_channels", "cutoff", "blocks", "bilinear", "spherical", "radial"
    ),
)
