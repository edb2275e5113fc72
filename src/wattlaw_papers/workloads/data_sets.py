"""What workloads with synthetic samples or files share: their options, work and folders."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Self, get_args

from pydantic import model_validator

from wattlaw.common.errors import BadInput
from wattlaw.workloads.workload import Work, WorkloadOptions, is_full_size

#: Names of evaluation data in public data sets.
VALIDATION_NAMES = ("validation", "val", "valid")


class DataOptions(WorkloadOptions):
    """Base of options with synthetic samples or files in the folder ``data``."""

    source: str = "synthetic"
    data: str | None = None

    @model_validator(mode="after")
    def _data_fits_source(self) -> Self:
        if self.source == "synthetic" and self.data is not None:
            sources = get_args(type(self).model_fields["source"].annotation)
            files = " or ".join(source for source in sources if source != "synthetic")
            raise ValueError(f"data is for source {files} only, and the source is synthetic")
        if self.source != "synthetic" and self.data is None:
            raise ValueError(f"source {self.source} needs data: the folder with the files")
        return self


def work_at_full_size(flops_per_sample: float, *sizes: str) -> Callable[[Any], Work | None]:
    """Return ``Entry.work`` for options with ``train_samples`` and ``evaluation_samples``; the work
    is None unless the options ``sizes``, which change the size of the model, have defaults."""

    def work(options: Any) -> Work | None:
        if not is_full_size(options, *sizes):
            return None
        return Work(options.train_samples, flops_per_sample, options.evaluation_samples)

    return work


def existing(folder: Path, *names: str) -> Path:
    paths = [folder / name for name in names]
    return next((path for path in paths if path.is_dir()), paths[0])


def check_new_data(folder: Path, size: int, least: int) -> None:
    """Check the arguments of ``Entry.make_data``; raise ``BadInput`` if one is not valid."""
    if size < least:
        raise BadInput(f"size: given {size}; allowed: a whole number >= {least}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadInput(f"{folder}: not an empty folder; allowed: a new or empty folder")
