"""Which NVIDIA boards a build of torch has kernels for."""

from collections.abc import Collection

Capability = tuple[int, int]

#: Compute capabilities of boards for data centres (https://developer.nvidia.com/cuda/gpus).
CAPABILITIES: dict[str, Capability] = {
    "p100": (6, 0), "v100": (7, 0), "v100s": (7, 0), "t4": (7, 5),
    "a30": (8, 0), "a100": (8, 0), "a10": (8, 6), "a40": (8, 6),
    "l4": (8, 9), "l40": (8, 9), "l40s": (8, 9), "h100": (9, 0), "h200": (9, 0), "gh200": (9, 0),
    "b200": (10, 0), "gb200": (10, 0), "b300": (10, 3), "gb300": (10, 3),
}  # fmt: skip


def no_kernels_reason(
    board: str, capability: Capability, version: str, architectures: Collection[str]
) -> str | None:
    """Return why torch cannot run on a board, None if it can, or has no list of architectures.

    ``architectures`` is that of ``torch.cuda.get_arch_list``. Code for ``sm_80`` runs on boards of
    capability 8.0 to 8.9, and ``compute_80``, which the driver compiles, on 8.0 and newer (CUDA C++
    Programming Guide, Binary and PTX Compatibility).
    """
    major, minor = capability
    for architecture in architectures:
        kind, _, digits = architecture.rstrip("af").partition("_")
        if not digits.isdigit():
            return None  # of another vendor
        built_for = divmod(int(digits), 10)
        if built_for <= capability and (kind == "compute" or built_for[0] == major):
            return None
    if not architectures:
        return None
    build = "for CUDA 12.6 (cu126)" if capability <= (7, 0) else "that has them"
    if capability >= (10, 0):
        build = "for CUDA 12.8 or newer (cu128)"
    return (
        f"torch {version} has no kernels for {board} (sm_{major}{minor}; it has "
        f"{', '.join(architectures)}); install a build of torch {build}"
    )
