"""Imports torchvision even if its compiled operators do not match torch, such as CPU-only torch.

The wheels on PyPI are CUDA builds. Their library does not load if torch has no CUDA, and ``import
torchvision`` then fails with ``operator torchvision::nms does not exist``. The imports of timm
(used by physicsnemo) and transformers fail with it. The models of wattlaw do not call these
operators, so this module only defines the two schemas that the import needs.

A torchvision that does not match also breaks a user's ``import transformers``. ``make setup``
therefore keeps it in a separate folder, from which only these workloads import it.
"""

import contextlib
import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

import torch

from wattlaw.common.errors import NotAvailable
from wattlaw.workloads.catalogue import SEPARATE_TORCHVISION

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_torch: Any = torch  # the functions used here have no type hints
_kept: list[Any] = []  # schemas live as long as their library object


def import_torchvision() -> Any:
    """Return the module ``torchvision``; call it before anything that imports torchvision. Where
    its compiled library loads, as it does on CUDA, nothing is changed."""
    if "torchvision" not in sys.modules:
        if SEPARATE_TORCHVISION.is_dir() and str(SEPARATE_TORCHVISION) not in sys.path:
            sys.path.append(str(SEPARATE_TORCHVISION))
        spec = importlib.util.find_spec("torchvision")
        if spec is None or spec.origin is None:
            raise NotAvailable('torchvision is not installed; try: pip install "wattlaw[vision]"')
        with contextlib.suppress(OSError):
            for operators in sorted(Path(spec.origin).parent.glob("_C*.so"))[:1]:
                _torch.ops.load_library(operators)
        if not hasattr(_torch.ops.torchvision, "nms"):
            library = _torch.library.Library("torchvision", "FRAGMENT")
            for schema in _SCHEMAS:
                library.define(schema)
            _kept.append(library)
    return importlib.import_module("torchvision")
