"""``schnet``, ``dimenet``: PyTorch Geometric's nets on QM9, or on made molecules.

Two sources of molecules:

``synthetic``
    drawn once from a fixed seed and kept in memory; no file is read.
``qm9``
    ``DATA/raw/qm9_v3.pt``, the file that ``torch_geometric.datasets.QM9(DATA)`` downloads where
    rdkit is not installed. Every rank reads it for itself, and writes nothing.

The settings are those of Frey et al. 2022: 128 channels, 6 blocks, Adam at a constant 1e-3. The
paper does not name the property that is predicted (here ``U0``, the energy at 0 K), nor its loss
(here the mean absolute error of the property in units of its standard deviation).
"""

from typing import Literal

from pydantic import Field, model_validator

from wattlaw.workloads.workload import Entry, WorkloadOptions, work_at_full_size

#: QM9's properties in the order of PyTorch Geometric's columns. Energies (and homo, lumo, gap and
#: zpve) are in eV, mu in D, alpha in a0^3, r2 in a0^2, Cv in cal/(mol K), and A, B, C in GHz.
Target = Literal[
    "mu", "alpha", "homo", "lumo", "gap", "r2", "zpve", "U0", "U", "H", "G", "Cv",
    "U0_atom", "U_atom", "H_atom", "G_atom", "A", "B", "C",
]  # fmt: skip


class Options(WorkloadOptions):
    """Options of both models."""

    source: Literal["synthetic", "qm9"] = Field(default="synthetic", description="synthetic or qm9")
    data: str | None = Field(
        default=None, description="the folder that has raw/qm9_v3.pt, for source qm9"
    )
    target: Target = Field(
        default="U0",
        description="the property to predict: mu, alpha, homo, lumo, gap, r2, zpve, U0, U, H, G, "
        "Cv, U0_atom, U_atom, H_atom, G_atom, A, B or C",
    )
    train_samples: int = Field(
        default=110_000,
        ge=1,
        description="molecules to train on (a whole number >= 1); a file that has fewer than these "
        "and evaluation_samples together is split in the same proportion",
    )
    evaluation_samples: int = Field(
        default=10_000, ge=1, description="molecules to evaluate on (a whole number >= 1)"
    )
    lr: float = Field(default=1e-3, gt=0, description="Adam's learning rate (a number > 0)")
    hidden_channels: int = Field(
        default=128, ge=1, le=1024, description="channels of atoms and messages (1 to 1024)"
    )

    @model_validator(mode="after")
    def _data_fit_the_source(self) -> "Options":
        if self.source == "synthetic" and self.data is not None:
            raise ValueError("data is given; allowed with source qm9 only")
        if self.source == "qm9" and self.data is None:
            raise ValueError("source qm9 needs data: the folder that has raw/qm9_v3.pt")
        return self


class SchNetOptions(Options):
    """Options of SchNet."""

    filters: int = Field(default=128, ge=1, le=1024, description="filters (1 to 1024)")
    interactions: int = Field(default=6, ge=1, le=64, description="interaction blocks (1 to 64)")
    gaussians: int = Field(
        default=50, ge=2, le=1024, description="functions that describe a distance (2 to 1024)"
    )
    cutoff: float = Field(
        default=10.0, gt=0, description="longest distance between neighbours in angstrom (> 0)"
    )


class DimeNetOptions(Options):
    """Options of DimeNet."""

    blocks: int = Field(default=6, ge=1, le=64, description="interaction blocks (1 to 64)")
    bilinear: int = Field(
        default=8, ge=1, le=128, description="size of the bilinear layers (1 to 128)"
    )
    spherical: int = Field(
        default=7, ge=2, le=12, description="spherical harmonics of an angle (2 to 12)"
    )
    radial: int = Field(
        default=6, ge=1, le=64, description="Bessel functions of a distance (1 to 64)"
    )
    cutoff: float = Field(
        default=5.0, gt=0, description="longest distance between neighbours in angstrom (> 0)"
    )


_MAKE_DATA = "wattlaw.workloads.molecules.make_data:make_data"
_MODULES = ("torch", "torch_geometric")

SCHNET = Entry(
    name="schnet",
    summary="SchNet on QM9 (its file, or synthetic molecules)",
    parameters=455_809,
    metric="mae",
    better="lower",
    options=SchNetOptions,
    factory="wattlaw.workloads.molecules.regression:SchNetOnQm9",
    make_data=_MAKE_DATA,
    work=work_at_full_size(
        2.641e8, "hidden_channels", "cutoff", "filters", "interactions", "gaussians"
    ),
    modules=_MODULES,
    extra="molecules",
)
DIMENET = Entry(
    name="dimenet",
    summary="DimeNet on QM9 (its file, or synthetic molecules)",
    parameters=2_100_070,
    metric="mae",
    better="lower",
    options=DimeNetOptions,
    factory="wattlaw.workloads.molecules.regression:DimeNetOnQm9",
    make_data=_MAKE_DATA,
    work=work_at_full_size(
        2.059e10, "hidden_channels", "cutoff", "blocks", "bilinear", "spherical", "radial"
    ),
    modules=_MODULES,
    extra="molecules",
)
