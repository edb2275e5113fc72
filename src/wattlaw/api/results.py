"""The results of one or several stores: laws, advice, predictions and comparisons."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wattlaw.analysis.advise import advice as analysis
from wattlaw.analysis.advise.left_out import runs_without_result
from wattlaw.api.advice import Advice
from wattlaw.api.fits import Fits, fit_metrics
from wattlaw.api.footprint import footprint_of
from wattlaw.api.store_reports import StoreReports
from wattlaw.common.errors import BadInput
from wattlaw.common.quantities import duration_s, energy_j, finite, share

if TYPE_CHECKING:
    from wattlaw.api.comparison import Comparison
    from wattlaw.api.predictions import Predictions


@dataclass(frozen=True)
class Results(StoreReports):
    """The runs of one or several stores: tables, laws, advice, predictions and figures.

    Tables are read when they are first used, and kept. Open the stores again to see newer runs.
    """

    def fit(
        self,
        x: str = "gpus",
        y: str = "time_s",
        by: str | Sequence[str] | None = None,
        *,
        energy_scope: str | None = None,
    ) -> Fits:
        """Fit the power law y = alpha * x^-beta, and other laws, to each scaling series.

        Parameters
        ----------
        x, y
            Columns of ``metrics``. ``time_s`` is the time of the unit that all runs have.
        by
            Columns that distinguish the series. By default runs are a series if they differ in
            the number of GPUs only, at the same global or the same local batch.
        energy_scope
            As in ``advise``.

        Examples
        --------
        >>> results = wattlaw.open("results")
        >>> fits = results.fit()
        >>> [(row.group["workload"], row.law.beta > 0.5) for row in fits.rows]
        [('resnet50', True)]
        """
        return fit_metrics(self._metrics_in(energy_scope), x, y, by)

    def advise(
        self,
        workload: str | None = None,
        *,
        minimize: str | None = None,
        deadline: str | float | timedelta | None = None,
        max_slowdown: str | float | None = None,
        energy_budget: str | float | None = None,
        max_gpus: int | None = None,
        epochs: int | None = None,
        target: float | None = None,
        baseline: str | Mapping[str, Any] | None = None,
        any_batch: bool = False,
        energy_scope: str | None = None,
        pue: float | None = None,
        grid: str | float | None = None,
        price: str | float | None = None,
        price_per_gpu_hour: str | float | None = None,
    ) -> Advice:
        """Recommend the number of GPUs, the power cap, the clock and the batch size.

        Parameters
        ----------
        workload
            The workload. It is not needed if the stores have a single one.
        minimize
            ``energy``, ``time``, ``gpu_hours``, ``edp``, ``cost`` or ``carbon``. By default the
            constraints determine what is minimized (``docs/deciding.md``).
        deadline, energy_budget
            Maximum time and energy of the training: seconds and joules, or texts such as ``6h``
            and ``50kWh``.
        max_slowdown
            Maximum slowdown relative to the fastest setting: ``0.05`` or ``5%``.
        max_gpus
            Maximum number of GPUs.
        epochs, target
            Epochs to train, by default those of the runs; or the value of the metric until which
            to train. Both need runs of which the time of an epoch is known.
        baseline
            The setting that savings refer to, such as ``"gpus=4,global_batch=256"``. By default
            the fastest one that may be recommended.
        any_batch
            Whether global batches of unknown or lower quality may be recommended.
        energy_scope
            What energies count: ``gpu``, ``node`` or ``all``, the outermost scope that was
            measured and the default. Runs without that scope have no energy.
        pue, grid, price, price_per_gpu_hour
            Power usage effectiveness of the data centre; g CO2e per kWh, or a region such as
            ``DE``; and prices of a kWh and of a GPU-hour, such as ``0.21 EUR``.

        Raises
        ------
        wattlaw.common.errors.Refused
            There is no done run of the workload, no run reached the target, or epochs are needed
            and the unit is another.
        wattlaw.common.errors.BadInput
            A constraint is out of range, the baseline is no setting of the runs, or one of several
            workloads must be named.

        Examples
        --------
        >>> advice = wattlaw.open("results").advise(max_slowdown="10%", any_batch=True)
        >>> advice.recommended.gpus <= 8
        True
        >>> advice.simulated
        True
        """
        if isinstance(baseline, str):
            from wattlaw.api.predictions import baseline_setting

            baseline = baseline_setting(baseline)
        name = self._workload(workload)
        advice = Advice.of(
            analysis.advise(
                self._metrics_in(energy_scope),
                self.epochs,
                name,
                minimize=minimize,
                deadline_s=duration_s("deadline", deadline),
                max_slowdown=share("max_slowdown", max_slowdown),
                energy_budget_j=energy_j("energy_budget", energy_budget),
                max_gpus=max_gpus,
                epochs_to_train=epochs,
                target=finite("target", target),
                baseline=baseline,
                any_batch=any_batch,
                footprint=footprint_of(pue, grid, price, price_per_gpu_hour),
                without_result=runs_without_result(self.runs, self.metrics["run_id"], name),
            )
        )
        is_of_workload = (self.decision or {}).get("workload") == advice.workload
        return replace(advice, decision=self.decision if is_of_workload else None)

    def predict(
        self,
        workload: str | None = None,
        *,
        gpus: Sequence[int] = (),
        nodes: Sequence[int] = (),
        gpus_per_node: int | None = None,
        local_batch: Sequence[int] = (),
        global_batch: Sequence[int] = (),
        power_limit_w: Sequence[float | None] = (),
        clock_limit_mhz: Sequence[float | None] = (),
        baseline: str | Mapping[str, Any] | None = None,
        epochs: int | None = None,
        hardware: str | None = None,
        seed: int = 0,
    ) -> "Predictions":
        """Predict time, power and energy of settings, with 90 % intervals.

        The settings are all combinations of the values.

        Parameters
        ----------
        workload
            The workload. It is not needed if the stores have a single one.
        gpus
            GPU counts. By default the measured ones and their doublings, up to four times the
            largest.
        nodes
            Numbers of nodes. By default as few as the GPUs need.
        gpus_per_node
            GPUs of a node. By default the most that a run had on one.
        local_batch, global_batch
            Samples of a training step, per GPU or in all; one of the two. By default that of most
            runs.
        power_limit_w, clock_limit_mhz
            Limits per GPU, None for no limit. By default those of most runs.
        baseline
            The setting that ``p_faster`` refers to, such as ``"gpus=4,global_batch=256"``. By
            default the measured setting with the least time per sample.
        epochs
            Epochs of a training, for ``train_time_s``.
        hardware
            The hardware of the runs, as for ``simulate``: the name of a cluster or a board, or the
            path of a hardware file. Its networks and clocks are the prior.
        seed
            Seed of the random numbers: equal runs and seeds give equal predictions.

        Raises
        ------
        wattlaw.common.errors.Refused
            The stores have no done run of the workload, or it is not data-parallel.
        wattlaw.common.errors.BadInput
            A value is out of range, or the stores have several workloads and none is named.

        Examples
        --------
        >>> [row] = wattlaw.open("results").predict(gpus=[32]).rows
        >>> low, high = row.time_per_sample_s_ci
        >>> low < row.time_per_sample_s < high
        True
        >>> row.source
        'predicted'
        """
        from wattlaw.analysis.predict.job import predict_workload
        from wattlaw.api.predictions import Predictions, baseline_setting
        from wattlaw.hardware.library import read_cluster

        predictions = predict_workload(
            self.metrics, self._workload(workload), baseline=baseline_setting(baseline),
            epochs=epochs, cluster=None if hardware is None else read_cluster(hardware), seed=seed,
            gpus=gpus, nodes=nodes, gpus_per_node=gpus_per_node, local_batch=local_batch,
            global_batch=global_batch, power_limit_w=power_limit_w,
            clock_limit_mhz=clock_limit_mhz,
        )  # fmt: skip
        return Predictions(**vars(predictions))

    def compare(
        self,
        other: "Results | str | PathLike[str] | None" = None,
        *,
        by: str | None = None,
        energy_scope: str | None = None,
    ) -> "Comparison":
        """Return the differences of other results to these, at the settings of both.

        Parameters
        ----------
        other
            Other results, or the path of a store.
        by
            ``git_commit``, without ``other``: compare the last two commits of these results.
        energy_scope
            As in ``advise``.

        Raises
        ------
        wattlaw.common.errors.Refused
            No setting has runs on both sides.

        Examples
        --------
        >>> comparison = wattlaw.open("results").compare("results")
        >>> comparison.pooled["time"].ratio
        1.0
        """
        from wattlaw.api.comparison import compare

        if isinstance(other, str | PathLike):
            other = Results((Path(other),), self.strict)
        return compare(self, other, by, energy_scope)


def open(*stores: str | PathLike[str], strict: bool = False) -> Results:
    """Open one or several stores, or bundles that ``Results.export`` wrote.

    ``BadInput`` names a folder that is not a store, or a file that is not a bundle. A run with a
    missing or damaged file is left out, with a ``DamagedFileWarning``; it is ``BadInput`` too if
    ``strict``.

    Examples
    --------
    >>> results = wattlaw.open("results")
    >>> results.workloads
    ('resnet50',)
    >>> sorted(set(results.settings["gpus"].tolist()))
    [1, 2, 4, 8]
    """
    if not stores:
        raise BadInput("open: given no store; allowed: one or more folders or bundles")
    paths = tuple(Path(store) for store in stores)
    results = Results(paths, strict)
    _ = results._stores
    return results
