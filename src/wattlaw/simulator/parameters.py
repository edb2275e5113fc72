"""The free parameters of the simulator: the shares of the hardware's peaks that runs achieve.

They describe machines and software, never a model. ``wattlaw calibrate`` fits them to measured
runs. Without calibration the defaults apply, and results say "uncalibrated".
"""

from typing import Annotated, Any

from pydantic import Field

from wattlaw.study.base import Model

Share = Annotated[float, Field(gt=0, le=1)]
AtLeastZero = Annotated[float, Field(ge=0, le=10**6)]


def _free(default: float | None, source: str) -> Any:
    return Field(default=default, description=source)


class Parameters(Model):
    """Free parameters; the description of each is the source of its default."""

    compute_fp32: Share = _free(0.7, "assumed: large float32 products reach 70-90 % of peak")
    compute_tensor: Share = _free(
        0.45, "assumed: training on tensor cores reaches 30-60 % of peak within its kernels"
    )
    bandwidth: Share = _free(0.8, "STREAM-like copies reach 75-90 % of a board's bandwidth")
    kernel_us: AtLeastZero = _free(2.0, "assumed: start and end of a kernel on the GPU, 1-4 us")
    launch_us: AtLeastZero = _free(
        8.0, "assumed: host's time for one operation of eager PyTorch, 5-10 us"
    )
    step_ms: AtLeastZero = _free(
        1.0, "assumed: host's time per step outside operations: loop, loader, optimiser, loss"
    )
    epoch_ms: AtLeastZero = _free(
        10.0, "assumed: barriers and the loader's start at an epoch's edges, 5-50 ms"
    )
    order_ns: AtLeastZero = _free(
        60.0,
        "measured: an epoch's order drawn on every rank, per sample of the whole data set, "
        "48 to 73 ns from 0.8 to 1.3 million samples (numpy, AMD EPYC; docs/simulator.md)",
    )
    network: Share = _free(0.8, "assumed: NCCL's bus bandwidth over that of the links, 70-90 %")
    overlap: Annotated[float, Field(ge=0, le=1)] = _free(
        0.8, "assumed: share of the communication that can hide behind the backward pass"
    )
    step_spread: AtLeastZero = _free(
        0.02, "assumed: standard deviation over mean of a rank's time from one step to the next"
    )
    gpu_spread: AtLeastZero = _free(
        0.015,
        "of the speeds of boards of one kind: a range of 8 % over hundreds of boards (Sinha et al. "
        "2022, Not All GPUs Are Created Equal, SC22) is about five standard deviations",
    )
    run_spread: AtLeastZero = _free(0.01, "assumed: of whole runs of one setting")
    #: Minimum voltage over that at the highest clock, and the share of that clock up to which the
    #: voltage is at its minimum; None: as in the hardware's file.
    least_voltage: Share | None = _free(None, "as the hardware's file says")
    knee: Share | None = _free(None, "as the hardware's file says")
    #: Dynamic power of a board at full clock, as shares of (max_w - idle_w): of running kernels, of
    #: arithmetic at its achievable rate, of memory at its achievable bandwidth.
    power_busy: AtLeastZero = _free(0.4, "assumed: GPUs that train draw 80-100 % of their limit")
    power_compute: AtLeastZero = _free(0.45, "assumed: dense products draw about the limit")
    power_memory: AtLeastZero = _free(0.25, "assumed: copies draw about half of the limit")
    power_communication: AtLeastZero = _free(
        0.12, "assumed: of gradients' communication and waiting for it"
    )
    power_awake: AtLeastZero = _free(0.05, "assumed: of waiting for the host with clocks up")
