"""The results of one or several stores: laws, advice, predictions and comparisons."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from os import PathLike
from typing import TYPE_CHECKING, Any, overload

import wattlaw.report.renderers  # noqa: F401 - how the results are shown
from wattlaw.analysis.advise.advice import Advice, advise
from wattlaw.analysis.advise.comparison import Comparison, compare, compare_commits
from wattlaw.analysis.advise.known_throughput import OBSERVED, Placements, place
from wattlaw.analysis.laws.fitting import Fits
from wattlaw.analysis.laws.limit_effects import LIMITS
from wattlaw.analysis.laws.series import fit_metrics
from wattlaw.api.arguments import amounts, counts, listed, path_of
from wattlaw.api.known_measurements import read_known
from wattlaw.api.questions import question_or_decided, read_baseline
from wattlaw.api.store_reports import StoreReports
from wattlaw.common.errors import BadInput, Refused
from wattlaw.common.text import quote
from wattlaw.study.question import asks, check_names

if TYPE_CHECKING:
    from wattlaw.analysis.predict.reach import Ranges
    from wattlaw.analysis.predict.workload_predictions import Predictions
    from wattlaw.hardware.cluster import Cluster


@dataclass(frozen=True, repr=False)
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
        >>> [(row.group["workload"], row.law.beta > 0.5) for row in fits]
        [('resnet50', True)]
        """
        return fit_metrics(self._metrics_in(energy_scope), x, y, by)

    @asks()
    def advise(
        self,
        workload: str | None = None,
        *,
        baseline: str | Mapping[str, Any] | None = None,
        any_batch: bool = False,
        far: bool = False,
        energy_scope: str | None = None,
        **asked: Any,
    ) -> Advice:
        """Recommend the number of GPUs, the power cap, the clock and the batch size.

        Parameters
        ----------
        workload
            The workload. By default that of the stores' study, else the only one.
        baseline
            The setting that savings refer to, such as ``"gpus=4,global_batch=256"``. By default
            ``decide.baseline`` of the store's study, else the fastest one that may be recommended.
        any_batch
            Whether global batches of unknown or lower quality may be recommended.
        far
            Whether ``max_gpus`` may be more than 64 times the most GPUs that ran.
        energy_scope
            What energies count: ``gpu``, ``node`` or ``all``, the outermost scope that was
            measured and the default. Runs without that scope have no energy.
        **asked
            What replaces the question of the store's study with ``decide``; another goal or bound
            is a question that the study's decision does not answer.
            ``minimize``: ``energy``, ``time``, ``gpu_hours``, ``edp``, ``cost`` or ``carbon``; by
            default the bounds determine it (``docs/deciding.md``). Bounds: ``deadline``,
            ``energy_budget`` and ``max_gpu_hours`` of the whole job, as far as it was measured, in
            seconds, joules and GPU-hours, or texts such as ``6h`` and ``50kWh``; ``max_slowdown``
            relative to the fastest setting, ``0.05`` or ``5%``; ``max_gpus``. The length:
            ``epochs``, by default those of the runs, or ``target``, the value of the metric until
            which to train; both need runs of which the time of an epoch is known; else
            ``total_samples``, epochs times the samples of one. Prices: ``pue``,
            the power usage effectiveness of the data centre; ``grid``, g CO2e per kWh or a region
            such as ``DE``; ``price`` of a kWh and ``price_per_gpu_hour``, such as ``0.21 EUR``.

        Raises
        ------
        wattlaw.common.errors.Refused
            There is no done run of the workload, no run reached the target, epochs are needed and
            the unit is another, or ``max_gpus`` needs ``far``.
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
        check_names(self.advise, asked)
        name = self._workload(workload)
        decided = self._decision_of(name)
        question, decision = question_or_decided(asked, decided, any_batch=any_batch)
        return advise(
            self._present_metrics(energy_scope),
            self.epochs,
            name,
            question,
            baseline=read_baseline(baseline),
            any_batch=any_batch,
            far=far,
            stored=self._present_tables[0],
            decision=decision,
            **self._words,
        )

    def predict(
        self,
        workload: str | None = None,
        *,
        gpus: int | Sequence[int] = (),
        nodes: int | Sequence[int] = (),
        gpus_per_node: int | None = None,
        local_batch: int | Sequence[int] = (),
        global_batch: int | Sequence[int] = (),
        power_limit_w: float | Sequence[float | None] | None = (),
        clock_limit_mhz: float | Sequence[float | None] | None = (),
        layout: Mapping[str, Any] | None = None,
        baseline: str | Mapping[str, Any] | None = None,
        epochs: int | None = None,
        hardware: str | None = None,
        seed: int = 0,
        far: bool = False,
    ) -> "Predictions":
        """Predict time, power and energy of settings, with 90 % intervals.

        The settings are all combinations of the values; each argument takes one or several.

        Parameters
        ----------
        workload
            The workload. By default that of the stores' study, else the only one.
        gpus
            GPU counts. By default the measured ones and their doublings, up to four times the
            largest, and on the machine of a study that ran on one without a scheduler; one where
            the runs show a script that trains on one alone. Without settings, the recommended one
            is predicted, too.
        nodes
            Numbers of nodes. By default as few as the GPUs need.
        gpus_per_node
            GPUs of a node. By default those of the study, else the most that a run had on one.
        local_batch, global_batch
            Samples of a training step, per GPU or in all; one of the two. By default that of most
            runs.
        power_limit_w, clock_limit_mhz
            Limits per GPU, None for no limit. By default those of most runs.
        layout
            Values of the parallel layout, one or several for each name, such as ``{"tp": [1, 2],
            "pp": 4, "micro_batch": [1, 2]}``. By default the layout of most runs. Combinations that
            cannot exist are left out. The runs must name their network.
        baseline
            The setting that ``p_faster`` refers to, such as ``"gpus=4,global_batch=256"``. By
            default ``decide.baseline`` of the store's study, else the measured setting with the
            least time per sample.
        epochs
            Epochs of a training, for ``train_time_s``.
        hardware
            The hardware of the runs, as for ``simulate``: the name of a cluster or a board, or the
            path of a hardware file. Its networks and clocks are the prior.
        seed
            Seed of the random numbers: equal runs and seeds give equal predictions.
        far
            Whether to predict more than 64 times the most GPUs that ran.

        Raises
        ------
        wattlaw.common.errors.Refused
            The stores have no done run of the workload, it is not data-parallel, or GPUs need
            ``far``.
        wattlaw.common.errors.BadInput
            A value is out of range, such as a limit that the board does not accept, or the stores
            have several workloads and none is named.

        Examples
        --------
        >>> [row] = wattlaw.open("results").predict(gpus=32)
        >>> low, high = row.time_per_sample_s_ci
        >>> low < row.time_per_sample_s < high
        True
        >>> row.source
        'predicted'
        """
        from wattlaw.analysis.predict.workload_predictions import predict_workload
        from wattlaw.hardware.library import read_cluster

        values = {
            name: counts(name, given)
            for name, given in (
                ("gpus", gpus), ("nodes", nodes), ("local_batch", local_batch),
                ("global_batch", global_batch),
            )
        }  # fmt: skip
        limits = {
            "power_limit_w": amounts("power_limit_w", power_limit_w),
            "clock_limit_mhz": amounts("clock_limit_mhz", clock_limit_mhz),
        }
        if gpus_per_node is not None:
            [gpus_per_node] = counts("gpus_per_node", gpus_per_node)
        if not isinstance(seed, int) or seed < 0:
            raise BadInput(f"seed: given {quote(seed)}; allowed: a whole number from 0")
        name, compared = self._workload(workload), read_baseline(baseline)
        cluster = None if hardware is None else read_cluster(hardware)
        recommended = None
        if not any([*values.values(), *limits.values(), gpus_per_node]):
            with suppress(Refused):
                if (option := self.advise(name).recommended) is not None:
                    recommended = option.hardware, option.setting
        decision = self._decision_of(name)
        studies = {*self.runs.loc[self.runs["workload"] == name, "study"]}
        launches = [study.launch for _, study in self._studies if study.name in studies]
        in_use = {} if decision is None else decision.decide.in_use
        has_limits = any(limits.values()) or not {*LIMITS}.isdisjoint(compared or in_use)
        boards = self._boards(name, cluster) if has_limits else {}
        node_gpus = max((each.gpus_per_node or 0 for each in launches), default=0)
        return predict_workload(
            self._present_metrics(), name, baseline=compared, in_use=in_use, epochs=epochs,
            cluster=cluster, seed=seed, far=far, boards=boards, recommended=recommended,
            stored=self._present_tables[0],
            is_one_machine=cluster is None and {each.kind for each in launches} == {"local"},
            gpus_per_node=gpus_per_node or (None if cluster else node_gpus or None),
            **values, **limits,
            layout={name: listed(given) for name, given in (layout or {}).items()},
        )  # fmt: skip

    def _boards(self, workload: str, cluster: "Cluster | None") -> "dict[str, Ranges]":
        """Return the limits that boards accept, by the hardware of a workload's runs.

        They are those of the hardware file; else of the library, with the power that runs recorded.
        """
        from wattlaw.hardware.library import accepted_limits, find_gpu

        boards: dict[str, Ranges] = {}
        rows = self.metrics[self.metrics["workload"] == workload]
        for label, run_ids in rows.fillna({"hardware": "None"}).groupby("hardware")["run_id"]:
            known = [
                (
                    float(device.facts.get("min_power_limit_w") or 0),
                    float(device.facts.get("max_power_limit_w") or 0),
                )
                for store in (() if cluster else self._stores)
                for record in filter(None, store.records_by_id(set(run_ids)).values())
                for device in chain(*(report.devices for report in record.samplers))
                if device.kind == "gpu" and device.name == record.facts.hardware
            ]
            gpu = cluster.gpu if cluster else find_gpu(str(label))
            boards[str(label)] = accepted_limits(gpu, known)
        return boards

    if TYPE_CHECKING:  # ``typing`` keeps overloads, and what they refer to, until Python ends

        @overload
        def compare(
            self,
            other: "Results | str | PathLike[str] | None" = None,
            *,
            by: str | None = None,
            energy_scope: str | None = None,
        ) -> Comparison: ...

        @overload
        def compare(
            self, *, reference: str | PathLike[str], map: str | None = None
        ) -> Placements: ...

    def compare(
        self,
        other: "Results | str | PathLike[str] | None" = None,
        *,
        by: str | None = None,
        energy_scope: str | None = None,
        reference: str | PathLike[str] | None = None,
        map: str | None = None,
    ) -> Comparison | Placements:
        """Return the differences of other results to these, at the settings of both.

        With ``reference``, return instead how the fastest setting of each workload and hardware
        compares with known measurements.

        Parameters
        ----------
        other
            Other results, or the path of a store.
        by
            ``git_commit``, without ``other``: compare the last two commits of these results.
        energy_scope
            As in ``advise``.
        reference
            A table of measurements that ``import_files`` reads, with the sizes of the models
            (``docs/report.md``), without ``other``.
        map
            Which column of the table each field takes, as of ``import_files``.

        Raises
        ------
        wattlaw.common.errors.Refused
            No setting has runs on both sides, or the runs do not say what network they train.
        wattlaw.common.errors.BadInput
            The arguments exclude each other, or the table cannot be read.

        Examples
        --------
        >>> comparison = wattlaw.open("results").compare("results")
        >>> comparison.pooled["time"].ratio
        1.0
        """
        if reference is not None:
            if any(given is not None for given in (other, by, energy_scope)):
                raise BadInput("reference: given with other, by or energy_scope; allowed: it alone")
            path = path_of("reference", reference)
            known, unread = read_known(path, map)
            placed = place(self.metrics, self.runs[[*OBSERVED]], known)
            return Placements(
                tuple(replace(row, left_out={**row.left_out, **unread}) for row in placed)
            )
        if map is not None:
            raise BadInput("map: given without reference; allowed: with it")
        of_a = self._metrics_in(energy_scope)
        if other is not None and not isinstance(other, Results):
            other = Results((path_of("other", other),), self.strict)
        if other is not None and by is None:
            a, b = (", ".join(str(path) for path in side.paths) for side in (self, other))
            return compare(of_a, other._metrics_in(energy_scope), (a, b))
        if other is not None or by != "git_commit":
            given = "one store" if by is None else f"by {quote(by)}"
            given = "two stores and by" if other is not None else given
            raise BadInput(f"compare: given {given}; allowed: two stores, or one and by git_commit")
        return compare_commits(self.runs, of_a)


def open(
    *stores: str | PathLike[str] | Sequence[str | PathLike[str]], strict: bool = False
) -> Results:
    """Open one or several stores: ``open("a", "b")`` or ``open(["a", "b"])``.

    ``BadInput`` names a folder that is not a store. A run with a missing or damaged file is left
    out, with a ``DamagedFileWarning``; it is ``BadInput`` too if ``strict``.

    Examples
    --------
    >>> results = wattlaw.open("results")
    >>> results.workloads
    ('resnet50',)
    >>> sorted(set(results.settings["gpus"].tolist()))
    [1, 2, 4, 8]
    """
    paths = tuple(path_of("stores", path) for store in stores for path in listed(store))
    if not paths:
        raise BadInput("stores: given none; allowed: one or more folders")
    results = Results(paths, strict)
    _ = results._stores
    return results
