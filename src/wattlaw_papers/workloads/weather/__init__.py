"""``fourcastnet``: an AFNO that forecasts the weather six hours ahead (Pathak et al. 2022).

FourCastNet (arXiv 2202.11214) is an Adaptive Fourier Neural Operator for 20 fields of ERA5 at
0.25 degrees. It is pre-trained on one step (80 epochs, 5e-4) and then fine-tuned on two successive
steps (50 epochs, 1e-4), both with Adam, a cosine schedule and global batch 64. The study sets the
number of epochs. The paper's code has 8 AFNO blocks; the default here is that of
nvidia-physicsnemo, 16, with which the model has 72,920,832 parameters.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from wattlaw.workloads.workload import Entry, Work, is_full_size, whole_number
from wattlaw_papers.workloads.data_sets import DataOptions

#: Steps of six hours in a year of the paper's files (without leap days).
STEPS_PER_YEAR = 1460
#: Forward and backward, as ``training.flops`` counts them.
_FLOPS_PER_SAMPLE = {"pretrain": 5_777_022_509_610, "finetune": 11_585_895_515_220}

_Size = Annotated[int, Field(ge=1)]
# JSON and YAML have lists, not tuples; the numbers are still validated strictly.
_HeightWidth = Annotated[tuple[_Size, _Size], Field(strict=False)]


class Options(DataOptions):
    source: Literal["synthetic", "era5"] = Field(
        default="synthetic", description="synthetic (from a seed) or era5 (HDF5 files in 'data')"
    )
    data: str | None = Field(
        default=None,
        description="for source era5: a folder with train/*.h5, test/*.h5 and stats/*.npy",
    )
    stage: Literal["pretrain", "finetune"] = Field(
        default="pretrain", description="pretrain (one step) or finetune (two successive steps)"
    )
    step: int = whole_number(
        1, "records from one time to the next, 1 is 6 hours", high=STEPS_PER_YEAR // 4
    )
    start_from: str | None = Field(
        default=None, description="a checkpoint with initial weights, or null"
    )
    channels: int = whole_number(20, "fields, the first of each file", high=256)
    image_size: _HeightWidth = Field(
        default=(720, 1440),
        description="[latitudes, longitudes] of the grid: multiples of patch_size, latitudes even",
    )
    patch_size: _HeightWidth = Field(
        default=(8, 8), description="[latitudes, longitudes] of a patch, each >= 1"
    )
    embed_dim: int = whole_number(768, "width of the model", high=16384)
    depth: int = whole_number(12, "AFNO layers", high=256)
    num_blocks: int = whole_number(16, "blocks of the spectral weights; divides embed_dim")
    lr: float | None = Field(
        default=None,
        gt=0,
        description="learning rate (a number > 0), or null for 5e-4 in pretrain, 1e-4 in finetune",
    )
    train_samples: int = whole_number(
        37 * STEPS_PER_YEAR, "synthetic training samples; the paper's 1979-2015 has 54020"
    )
    evaluation_samples: int = whole_number(
        2 * STEPS_PER_YEAR, "synthetic evaluation samples; the paper's 2016-2017 has 2920"
    )

    @model_validator(mode="after")
    def _options_fit(self) -> Self:
        unused = self.model_fields_set & {"train_samples", "evaluation_samples"}
        if self.source == "era5" and unused:
            raise ValueError(f"'{min(unused)}' is for source synthetic; era5 uses all its files")
        if self.image_size[0] % 2:
            raise ValueError(f"image_size {list(self.image_size)}: the latitudes must be even")
        if any(side % patch for side, patch in zip(self.image_size, self.patch_size, strict=True)):
            sizes = f"image_size {list(self.image_size)}", f"patch_size {list(self.patch_size)}"
            raise ValueError(" must be a multiple of ".join(sizes))
        if self.embed_dim % self.num_blocks:
            raise ValueError(f"num_blocks {self.num_blocks} must divide embed_dim {self.embed_dim}")
        return self

    @property
    def steps(self) -> int:
        return {"pretrain": 1, "finetune": 2}[self.stage]


def _work(options: Options) -> Work | None:
    """Return the work of an epoch at full size; files are assumed to be those of 1979-2015."""
    sizes = "channels", "image_size", "patch_size", "embed_dim", "depth", "num_blocks"
    if not is_full_size(options, *sizes):
        return None
    return Work(options.train_samples, _FLOPS_PER_SAMPLE[options.stage], options.evaluation_samples)


FOURCASTNET = Entry(
    name="fourcastnet",
    summary="FourCastNet's AFNO forecasts ERA5 weather 6 hours ahead",
    parameters=72_920_832,
    metric="rmse",
    options=Options,
    factory="wattlaw_papers.workloads.weather.fourcastnet:FourCastNet",
    better="lower",
    make_data="wattlaw_papers.workloads.weather.synthetic_weather:make_data",
    real_input="wattlaw_papers.workloads.real_input:weather_states",
    work=_work,
    modules=("torch", "physicsnemo", "h5py"),
    extra="weather",
)
