"""The boards of a study, as its label, Slurm or the driver names them, and what fits on them."""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import NamedTuple

from wattlaw.common.errors import BadInput
from wattlaw.hardware import library
from wattlaw.measure.devices.nvidia.architectures import CAPABILITIES
from wattlaw.study.base_model import Precision
from wattlaw.study.model import RunSpec, WorkloadSpec
from wattlaw.workloads import catalogue
from wattlaw.workloads.profile import micro_batch, rank_memory_gb

#: Estimates over the memory of a board from which runs are refused and warned of. Estimates leave
#: out workspaces, fragments and the CUDA context, so that they are rather too small.
_REFUSED, NEAR = 1.1, 0.85
#: Larger numbers in a name are the memory of the host.
_LARGEST_GB = 300


class Board(NamedTuple):
    name: str
    memory_gb: float | None = None


def named_board(text: str) -> Board | None:
    """Return the board that a label, a type of a generic resource or a driver names, or None.

    These are names of the library (``a100-sxm-40gb``, ``mit-v100``), and others with the model as a
    word, such as ``NVIDIA A100-SXM4-40GB`` and ``v100``. Without its memory, a board of this model
    has at most that of the largest in the library.
    """
    words = re.findall("[a-z0-9]+", text.lower())
    if text in library.cluster_names() or text in library.gpu_names():
        gpu = library.read_cluster(text).gpu
        return Board(gpu.name, gpu.memory_gb)
    if CAPABILITIES.keys().isdisjoint(words):
        return None
    instance = re.search(r"\d+g\.\d+gb", text.lower())  # of MIG, such as 1g.5gb
    sizes = [float(size) for size in re.findall(r"(\d+)\s?gi?b", (instance or [text.lower()])[0])]
    # "NVIDIA GH200 120GB" names the memory of its processor.
    sizes = [size for size in sizes if size <= _LARGEST_GB and "gh200" not in words]
    if not sizes:
        known = [name for name in library.gpu_names() if name.partition("-")[0] in words]
        sizes = [library.read_cluster(name).gpu.memory_gb for name in known]
    return Board(text, max(sizes, default=None))


def too_large_reason(spec: RunSpec, boards: Sequence[Board]) -> str | None:
    """Return why a run clearly fits none of some boards.

    None is also returned where memory is unknown, and for compiled models, which may keep less.
    """
    needed_gb, board, memory_gb = _needed_gb(spec), *_largest(boards)
    if needed_gb <= _REFUSED * memory_gb or spec.train.compile:
        return None
    return f"does not fit into GPU memory: {_needs(spec, needed_gb, board, memory_gb)}"


def memory_warnings(specs: Iterable[RunSpec], boards: Sequence[Board]) -> Iterator[str]:
    board, memory_gb = _largest(boards)
    near: dict[str, tuple[float, RunSpec]] = {}
    for spec in specs:
        needed_gb, name = _needed_gb(spec), spec.workload.name
        is_refused = too_large_reason(spec, boards) is not None
        if needed_gb >= NEAR * memory_gb and not is_refused and needed_gb > near.get(name, (0,))[0]:
            near[name] = needed_gb, spec
    for name, (needed_gb, spec) in near.items():
        yield f"runs of {name} may not fit: {_needs(spec, needed_gb, board, memory_gb)}"


def _largest(boards: Sequence[Board]) -> tuple[str, float]:
    """Return name and memory of the largest board; infinite where one of them is unknown."""
    sizes = [(board.memory_gb or float("inf"), board.name) for board in boards]
    memory_gb, name = max(sizes, default=(float("inf"), ""))
    return name, memory_gb


def _needs(spec: RunSpec, needed_gb: float, board: str, memory_gb: float) -> str:
    precision, local = spec.setting.precision or "fp32", spec.local_batch or 1
    text, fits_gb = spec.workload.model_dump_json(), NEAR * memory_gb
    none_gb, one_gb = (_estimate_gb(text, count, precision) for count in (0, 1))
    fixes = []
    if one_gb <= fits_gb:
        most = int((fits_gb - none_gb) / (one_gb - none_gb))
        fixes.append(f"train.gradient_accumulation: {-(-local // most)}")
        fixes.append(f"a local batch of at most {most} (the same global batch on more GPUs)")
    samples = micro_batch(local, spec.gradient_accumulation)
    if _estimate_gb(text, samples, "bf16") <= fits_gb:
        fixes.append("precision bf16 or fp16")
    return (
        f"{spec.workload.name} with local batch {local} in {precision} needs about "
        f"{needed_gb:,.0f} GB (estimated), and {board} has {memory_gb:.3g} GB; use "
        f"{' or '.join(fixes) or 'a board with more memory'}"
    )


def _needed_gb(spec: RunSpec) -> float:
    """Return the memory that a rank needs; 0 if it is not known."""
    if spec.workload.command is not None or spec.local_batch is None:
        return 0.0
    samples = micro_batch(spec.local_batch, spec.gradient_accumulation)
    return _estimate_gb(spec.workload.model_dump_json(), samples, spec.setting.precision)


@cache  # thousands of runs share it
def _estimate_gb(workload: str, samples: int, precision: Precision) -> float:
    try:
        profile = catalogue.profile(WorkloadSpec.model_validate_json(workload))
    except BadInput:  # none is stored for these options
        return 0.0
    return rank_memory_gb(profile, samples, precision)
