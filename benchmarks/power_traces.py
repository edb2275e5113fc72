"""The simulator's power limits beside measured ones, and the fit of its V100.

``power_caps.csv`` (docs/benchmarks.md) has time and mean power of epochs on one V100 under limits
of 100 to 250 W. Four numbers are fitted to its ResNet50 on ImageNet and BERT on SQuAD: two shares
of power in ``simulator/job.py``, knee and lowest voltage of the V100. BERT on Sentiment140 is the
check. Run with ``python benchmarks/power_traces.py``; ``docs/simulator.md`` has the table.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.optimize import least_squares

from prediction_data import FOLDER
from published import markdown
from wattlaw.hardware.library import read_cluster
from wattlaw.study.model import WorkloadSpec
from wattlaw.workloads import catalogue
from wattlaw_simulator.kernels import kernel_load
from wattlaw_simulator.power import Board
from wattlaw_simulator.simulated_job import Parameters

#: By data set: our workload, the network's name in the table, how many of our samples one of theirs
#: is (our sequences have 512 tokens, those of SQuAD 384, those of Sentiment140 about 64), and the
#: least batch: below it, the time of an epoch depends on the machine's processor.
TRACES = {
    "imagenet": ("resnet50", "resnet50", 1.0, 32),
    "squad": ("bert-base", "bert_base_uncased", 384 / 512, 8),
    "sentiment140": ("bert-base", "bert_base_uncased", 64 / 512, 32),
}
FITTED = ("imagenet", "squad")
LIMITS = (250.0, 225.0, 200.0, 175.0, 150.0, 125.0, 100.0)


def measured(dataset: str) -> pd.DataFrame:
    """Return time relative to 250 W, and power: medians over optimizers, by batch and limit."""
    _, network, _, least = TRACES[dataset]
    table = pd.read_csv(FOLDER / "power_caps.csv")
    table = table[(table["gpu"] == "V100") & (table["dataset"] == dataset)]
    table = table[(table["network"] == network) & (table["batch_size"] >= least)]
    medians = table.groupby(["batch_size", "power_limit"])[["time_per_epoch", "average_power"]]
    wide = medians.median().unstack()
    wide["time_per_epoch"] = wide["time_per_epoch"].div(wide["time_per_epoch", 250], axis=0)
    return wide.dropna()


def simulated(board: Board, workload: str, batch: float) -> Iterator[tuple[float, float]]:
    """Yield time and power of a step on one GPU under each limit."""
    profile = catalogue.profile(WorkloadSpec(name=workload))
    load = kernel_load(profile, ("forward", "backward", "optimizer"), batch, board.precision)
    for limit_w in LIMITS:
        point = replace(board, power_limit_w=limit_w).run(load, 0.0)
        yield point.compute_s, point.compute_w


def both(board: Board, dataset: str) -> pd.DataFrame:
    """Return measured and simulated values of all batches."""
    workload, _, samples, _ = TRACES[dataset]
    rows = []
    for batch, values in measured(dataset).iterrows():
        points = list(simulated(board, workload, batch * samples))
        for limit_w, (time_s, power_w) in zip(LIMITS, points, strict=True):
            time, power = values["time_per_epoch", limit_w], values["average_power", limit_w]
            rows.append((limit_w, time, time_s / points[0][0], power, power_w))
    names = ("limit W", "time", "simulated time", "power W", "simulated power W")
    return pd.DataFrame(rows, columns=names)


def errors(board: Board, *datasets: str) -> npt.NDArray[np.float64]:
    """Return the logs of simulated over measured times and powers."""
    table = pd.concat(both(board, dataset) for dataset in datasets)
    logs = np.log(table[["simulated time", "simulated power W"]].to_numpy())
    return (logs - np.log(table[["time", "power W"]].to_numpy())).ravel()


def fitted(board: Board) -> Board:
    """Return the board with the four numbers that fit."""

    def changed(x: npt.NDArray[np.float64]) -> Board:
        busy, compute, knee, voltage = x
        curve = {"knee_clock_mhz": knee * board.gpu.max_clock_mhz, "least_voltage": voltage}
        powers = {"power_busy": busy, "power_compute": compute}
        parameters = replace(board.parameters, **powers)
        return replace(board, gpu=board.gpu.model_copy(update=curve), parameters=parameters)

    bounds = ([0.05, 0.05, 0.3, 0.6], [1.2, 1.2, 0.98, 0.99])
    found = least_squares(
        lambda x: errors(changed(x), *FITTED), [0.4, 0.45, 0.65, 0.8],
        bounds=bounds, diff_step=0.01,
    )  # fmt: skip
    return changed(found.x)


def main() -> None:
    """Print the fit, and the table of each network with the shipped numbers."""
    board = Board(read_cluster("mit-v100").gpu, "fp32", Parameters())
    fit = fitted(board)
    print(fit.parameters, fit.gpu.knee_clock_mhz, fit.gpu.least_voltage)
    for dataset in TRACES:
        table = both(board, dataset).groupby("limit W").median().loc[list(LIMITS)]
        rms = np.sqrt((errors(board, dataset) ** 2).mean())
        print(f"\n{dataset}: root mean square error {rms:.1%}\n")
        print(markdown(table.reset_index().round(3)))


if __name__ == "__main__":
    main()
