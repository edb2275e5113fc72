"""Whether a run was out of memory, and of which memory: read from the reason of its end.

Such a run is a measurement: its setting needs more memory than there was.
"""

import re
from typing import Literal

#: Memory of the devices that train, or of the host.
Memory = Literal["device", "host"]
#: The status of such a run.
OUT_OF_MEMORY = "out of memory"
#: What frameworks and drivers say: torch of CUDA, ROCm, XPU and MPS, cuBLAS, JAX and TensorFlow.
_DEVICE = re.compile(
    r"\b(CUDA|HIP|XPU|MPS|GPU|NPU|HBM|device)\b[\w :]*\bout of memory\b|\bOutOfMemoryError\b"
    r"|\b(CU|HIP)BLAS_STATUS_ALLOC_FAILED\b|\b(cuda|hip)ErrorMemoryAllocation\b"
    r"|\bRESOURCE_EXHAUSTED\b|\bOOM when allocating\b",
    re.IGNORECASE,
)
#: What Python, torch on a CPU, C++, the kernel and Slurm say.
_HOST = re.compile(
    r"\bDefaultCPUAllocator\b|\bcan(no|')t allocate memory\b|(?<!\w)MemoryError\b|\bbad_alloc\b"
    r"|\boom[-_ ]kill|\bout-of-memory killer\b|\bran out of memory on its nodes\b",
    re.IGNORECASE,
)
#: What tables and logs say without more; it is of the devices, as in tables of the literature.
_EITHER = re.compile(r"\bout of memory\b|^\s*oom\s*$", re.IGNORECASE)


def memory_that_ran_out(reason: str | None) -> Memory | None:
    """Return which memory a failed run had too little of, or None if it failed otherwise."""
    text = reason or ""
    if _DEVICE.search(text):
        return "device"
    if _HOST.search(text):
        return "host"
    return "device" if _EITHER.search(text) else None
