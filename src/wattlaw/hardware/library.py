"""Hardware descriptions: those that ship with the package, and the user's own files."""

import contextlib
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from wattlaw.common.errors import BadInput
from wattlaw.common.text import quote
from wattlaw.hardware.cluster import Cluster, Gpu
from wattlaw.study.base_model import LocatedError
from wattlaw.study.document import read_document

_FILES = Path(__file__).parent / "files"


def cluster_names() -> list[str]:
    return sorted(path.stem for path in (_FILES / "clusters").glob("*.yaml"))


def gpu_names() -> list[str]:
    return sorted(path.stem for path in (_FILES / "gpus").glob("*.yaml"))


def read_cluster(name_or_path: str) -> Cluster:
    """A cluster: one of ``cluster_names``, or of a YAML file.

    The name of a board (``gpu_names``) is one node with one such board in an assumed machine.
    """
    if name_or_path in (*cluster_names(), *gpu_names()):
        return _shipped(name_or_path)
    path = Path(name_or_path)
    is_file = False
    with contextlib.suppress(OSError, ValueError):  # no file can have such a name
        is_file = path != Path() and path.exists()
    if path.suffix in (".yaml", ".yml") or len(path.parts) > 1 or is_file:
        return read_document(path, Cluster, _with_board)
    raise BadInput(
        f"no hardware is named {quote(name_or_path, 100)}; allowed: a cluster "
        f"({', '.join(cluster_names())}), one board ({', '.join(gpu_names())}), or the path of a "
        "YAML file"
    )


@cache
def _shipped(name: str) -> Cluster:
    if name in cluster_names():
        return read_document(_FILES / "clusters" / f"{name}.yaml", Cluster, _with_board)

    def prepare(data: dict[str, Any]) -> dict[str, Any]:
        return _with_board(data | {"name": name, "node": data["node"] | {"gpu": name}})

    return read_document(_FILES / "parts" / "one-board.yaml", Cluster, prepare)


@cache
def _board(name: str) -> Gpu:
    return read_document(_FILES / "gpus" / f"{name}.yaml", Gpu)


def _with_board(data: dict[str, Any]) -> dict[str, Any]:
    node = data.get("node")
    if not isinstance(node, dict) or not isinstance(node.get("gpu"), str):
        return data
    name = node["gpu"]
    if name not in gpu_names():
        raise LocatedError(
            f'given "{name[:100]}"; allowed: one of {", ".join(gpu_names())}, or a mapping that '
            "describes a board",
            *("node", "gpu"),
        )
    return data | {"node": node | {"gpu": _board(name).model_dump(mode="json")}}


def find_gpu(label: str) -> Gpu | None:
    """Return the board that the hardware of runs names: by the library or, as in ``NVIDIA
    A100-SXM4-40GB``, by the driver; None if it is not in the library."""
    first, words = label.partition(" ")[0], re.findall("[a-z0-9]+", label.lower())
    for name in gpu_names():
        if all(any(word.startswith(part) for word in words) for part in name.split("-")):
            return _board(name)
    return _shipped(first).gpu if first in cluster_names() else None


def accepted_limits(
    gpu: Gpu | None, recorded: Sequence[tuple[float, float]]
) -> dict[str, tuple[float, float]]:
    """Return the limits that a board accepts: those of its description, or that runs recorded.

    ``recorded`` are the least and the greatest power limit of devices, 0 where unknown.
    """
    ranges: dict[str, tuple[float, float]] = {}
    if gpu is not None:
        ranges["power_limit_w"] = (gpu.min_limit_w, gpu.max_w)
        ranges["clock_limit_mhz"] = (gpu.min_clock_mhz, gpu.max_clock_mhz)
    if any(high for _, high in recorded):
        low = min(recorded)[0] or ranges.get("power_limit_w", (0.0,))[0]
        ranges["power_limit_w"] = (low, max(high for _, high in recorded))
    return ranges
