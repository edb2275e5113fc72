"""The results of one or several stores: tables, laws, advice, claims, figures and the report."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import tee
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa

from wattlaw import registry
from wattlaw.analysis.advice import advice as analysis
from wattlaw.api.advice import Advice
from wattlaw.api.display import Report, as_html
from wattlaw.api.fits import Fits, fit_metrics
from wattlaw.api.footprint import footprint_of
from wattlaw.api.store_tables import StoreTables
from wattlaw.errors import BadInput, Refused
from wattlaw.exporting import GROUP, Batch, Exported, Exporter, Options
from wattlaw.quantities import duration_s, energy_j, finite, share
from wattlaw.store.schema import TABLES
from wattlaw.store.tables import KINDS, write_table
from wattlaw.text import join_names, quote

if TYPE_CHECKING:
    import altair as alt

    from wattlaw.analysis.findings import Findings
    from wattlaw.api.claims import Claims
    from wattlaw.api.comparison import Comparison
    from wattlaw.api.predictions import Predictions


#: The tables that ``export`` writes.
EXPORTS = ("runs", "epochs", "telemetry", "statistics", "metrics", "settings", "fits")


@dataclass(frozen=True)
class Results(StoreTables):
    """The runs of one or several stores: tables, laws, advice, predictions and figures.

    Tables are read when they are first used, and kept. Open the stores again to see newer runs.
    """

    def fit(
        self, x: str = "gpus", y: str = "time_s", by: str | Sequence[str] | None = None
    ) -> Fits:
        """Fit the power law y = alpha * x^-beta, and other laws, to each scaling series.

        Parameters
        ----------
        x, y
            Columns of ``metrics``. ``time_s`` is the time of the unit that all runs have.
        by
            Columns that distinguish the series. By default runs are a series if they differ in
            the number of GPUs only, at the same global or the same local batch.

        Examples
        --------
        >>> results = wattlaw.open("results")
        >>> fits = results.fit()
        >>> [(row.group["workload"], row.law.beta > 0.5) for row in fits.rows]
        [('resnet50', True)]
        """
        return fit_metrics(self.metrics, x, y, by)

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
            constraints determine what is minimized (``docs/advice.md``).
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
        pue, grid, price, price_per_gpu_hour
            Power usage effectiveness of the data centre; g CO2e per kWh, or a region such as
            ``DE``; and prices of a kWh and of a GPU-hour, such as ``0.21 EUR``.

        Raises
        ------
        wattlaw.errors.Refused
            There is no done run of the workload, no run reached the target, or epochs are needed
            and the unit is another.
        wattlaw.errors.BadInput
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
        advice = Advice.of(
            analysis.advise(
                self.metrics,
                self.epochs,
                self._workload(workload),
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
        wattlaw.errors.Refused
            The stores have no done run of the workload, or it is not data-parallel.
        wattlaw.errors.BadInput
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
        from wattlaw.analysis.prediction.job import predict_workload
        from wattlaw.api.predictions import Predictions, baseline_setting
        from wattlaw.simulator.library import read_cluster

        predictions = predict_workload(
            self.metrics, self._workload(workload), baseline=baseline_setting(baseline),
            epochs=epochs, cluster=None if hardware is None else read_cluster(hardware), seed=seed,
            gpus=gpus, nodes=nodes, gpus_per_node=gpus_per_node, local_batch=local_batch,
            global_batch=global_batch, power_limit_w=power_limit_w,
            clock_limit_mhz=clock_limit_mhz,
        )  # fmt: skip
        return Predictions(**vars(predictions))

    def claims(self, *, pue: float | None = None, grid: str | float | None = None) -> "Claims":
        """Test the published findings of the two studies on these runs.

        Parameters
        ----------
        pue, grid
            As in ``advise``. The claims on carbon need them.

        Examples
        --------
        >>> claims = wattlaw.open("results").claims()
        >>> sorted(claims.to_frame()["verdict"].unique())[-1]
        'simulated'
        """
        from wattlaw.analysis.claims import check_claims
        from wattlaw.analysis.findings import analyse
        from wattlaw.api.claims import Claims

        return Claims(check_claims(analyse(*self._tables, footprint=footprint_of(pue, grid))))

    def compare(
        self, other: "Results | str | PathLike[str] | None" = None, *, by: str | None = None
    ) -> "Comparison":
        """Return the differences of other results to these, at the settings of both.

        Parameters
        ----------
        other
            Other results, or the path of a store.
        by
            ``git_commit``, without ``other``: compare the last two commits of these results.

        Raises
        ------
        wattlaw.errors.Refused
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
        return compare(self, other, by)

    @property
    def figures(self) -> tuple[str, ...]:
        """The names of the figures that ``plot`` draws."""
        from wattlaw.report.figures import GALLERY

        return tuple(figure.name for figure in GALLERY)

    def plot(
        self, figure: str, *, reference: int | None = None, target: float | None = None
    ) -> "alt.ConcatChart":
        """Return a figure of the report as an Altair chart.

        Parameters
        ----------
        figure
            A name of ``figures``, such as ``energy_speed``.
        reference
            The GPU count that speedups are relative to; by default each series' smallest.
        target
            A target quality, for the figure ``targets``.

        Raises
        ------
        wattlaw.errors.BadInput
            There is no such figure.
        wattlaw.errors.Refused
            The runs do not have what the figure shows.

        Examples
        --------
        >>> chart = wattlaw.open("results").plot("speedup")
        >>> chart.to_dict()["title"]["text"]
        'Speedup'
        """
        import altair as alt

        from wattlaw.report.figures import GALLERY
        from wattlaw.report.pictures import chart_of

        if figure not in self.figures:
            raise BadInput(f"figure: given {quote(figure)}; allowed: {', '.join(self.figures)}")
        drawn = GALLERY[self.figures.index(figure)]
        chart = chart_of(drawn, self._findings(reference=reference, target=target))
        if chart is None:
            raise Refused(f"figure {figure}: these runs do not have what it shows")
        return alt.ConcatChart.from_dict(chart.spec)

    def report(
        self,
        path: str | PathLike[str] = "report.html",
        *,
        template: str | None = None,
        claims: bool = False,
        interactive: bool = False,
        figures: str | PathLike[str] | None = None,
        kinds: str | Sequence[str] = ("png", "svg"),
        target: float | None = None,
        pue: float | None = None,
        grid: str | float | None = None,
        price: str | float | None = None,
        price_per_gpu_hour: str | float | None = None,
    ) -> Report:
        """Write the report, an HTML page that needs no network.

        Parameters
        ----------
        path
            The page. Its folder is created if necessary.
        template
            ``mit-2022`` or ``kit-2025`` for the layout of that study.
        claims
            Show the published claims even if these runs decide none of them.
        interactive
            Draw the figures with Vega: they show values and zoom, and tables can be sorted.
        figures, kinds
            A folder for the figures as files, and their kinds: ``png``, ``svg``, ``html``.
        target
            A target quality: the report also shows the time and energy to reach it.
        pue, grid, price, price_per_gpu_hour
            As in ``advise``.

        Examples
        --------
        >>> wattlaw.open("results").report("report.html").page.name
        'report.html'
        """
        from wattlaw.analysis.claims import check_claims
        from wattlaw.report.layouts import layout
        from wattlaw.report.page import Options, write_report
        from wattlaw.report.pictures import figure_kinds, make_charts, write_figures

        page, chosen = Path(path), layout(template)
        file_kinds = figure_kinds(kinds if isinstance(kinds, str) else ",".join(kinds))
        findings = self._findings(
            footprint=footprint_of(pue, grid, price, price_per_gpu_hour),
            reference=chosen.reference,
            target=finite("target", target),
        )
        for_page, for_files = tee(make_charts(findings, chosen.study))
        options = Options(template, claims, interactive)
        write_report(findings, check_claims(findings), page, options, for_page)
        files = [] if figures is None else write_figures(for_files, Path(figures), file_kinds)
        return Report(page, tuple(files))

    def proposal(
        self,
        path: str | PathLike[str] = "proposal.html",
        *,
        nodes: int,
        workload: str | None = None,
        runs: int = 1,
        epochs: int | None = None,
        pue: float | None = None,
        grid: str | float | None = None,
        price: str | float | None = None,
        price_per_gpu_hour: str | float | None = None,
    ) -> Report:
        """Write two pages for a compute-time proposal: scaling, planned campaign and method.

        Parameters
        ----------
        path
            The page; Markdown with LaTeX tables where its name ends in ``.md``.
        nodes
            The number of nodes of a training. Counts that did not run are predicted.
        workload
            The workload. It is not needed if the stores have a single one.
        runs, epochs
            The number of trainings, and epochs of each, by default those of most runs.
        pue, grid, price, price_per_gpu_hour
            As in ``advise``.

        Raises
        ------
        wattlaw.errors.Refused
            No run of the workload is done, or the time of a training is not known.
        wattlaw.errors.BadInput
            A number is out of range, or the runs do not name their nodes.

        Examples
        --------
        >>> wattlaw.open("results").proposal("proposal.html", nodes=4).page.name
        'proposal.html'
        """
        from wattlaw.analysis.proposal import Campaign, propose
        from wattlaw.report.proposal import write_proposal

        findings = self._findings(footprint=footprint_of(pue, grid, price, price_per_gpu_hour))
        campaign = Campaign(nodes, runs, epochs)
        files = write_proposal(propose(findings, self._workload(workload), campaign), Path(path))
        return Report(files[0], tuple(files[1:]))

    def export(
        self,
        what: str,
        path: str | PathLike[str],
        *,
        raw: bool = False,
        batch: Batch | None = None,
    ) -> Exported:
        """Write a table, or a file of another format; return the files and their number of rows.

        Parameters
        ----------
        what
            A table of ``EXPORTS``, such as ``runs``; or an exporter: ``extrap``, ``bundle``, or
            one of another package.
        path
            The file. Its ending selects the kind.
        raw
            Write CSV cells that a spreadsheet takes for a formula unchanged.
        batch
            For ``extrap``: ``global`` or ``local``, the batch that is a second parameter.

        Examples
        --------
        >>> wattlaw.open("results").export("bundle", "study.zip").files[0].name
        'study.zip'
        """
        output = Path(path)
        names = registry.names(GROUP)
        if what not in (*EXPORTS, *names):
            raise BadInput(f"export: given {quote(what)}; allowed: {', '.join((*EXPORTS, *names))}")
        exporter: Exporter | None = registry.load(GROUP, what)() if what in names else None
        endings = KINDS if exporter is None else exporter.endings
        if (end := output.suffix).lower() not in endings:
            raise BadInput(f"{output}: unknown ending {end!r}; allowed: {', '.join(endings)}")
        if batch not in (None, "global", "local"):
            raise BadInput(f"batch: given {quote(batch)}; allowed: global, local")
        output.parent.mkdir(parents=True, exist_ok=True)
        if exporter is not None:
            return exporter.write(self, output, Options(raw, batch))
        if what in TABLES:
            rows = self.arrow(what)
        else:
            frame = self.fit().to_frame() if what == "fits" else getattr(self, what)
            rows = pa.Table.from_pandas(frame, preserve_index=False)
        write_table(output, rows, raw=raw)
        return Exported((output,), len(rows))

    def to_dict(self) -> dict[str, Any]:
        """Return plain Python: the stores, and the number of runs by workload and status."""
        runs = self.to_frame().to_dict("records")
        return {"stores": [str(path) for path in self.paths], "runs": runs}

    def to_frame(self) -> pd.DataFrame:
        """Return the number of runs by workload and status, with the range of GPU counts."""
        by = self.runs.groupby(["workload", "launcher", "status"], dropna=False)["gpus"]
        counts = by.agg(["size", "min", "max"])
        counts.columns = pd.Index(["runs", "gpus_min", "gpus_max"])
        return counts.reset_index()

    def _repr_html_(self) -> str:
        return as_html(self.to_frame(), [f"Stores: {', '.join(map(str, self.paths))}"])

    def _workload(self, name: str | None) -> str:
        if name is None and not self.workloads:
            raise Refused("no run is done")
        if name is None and len(self.workloads) > 1:
            raise BadInput(f"workload is required; allowed: {join_names(self.workloads)}")
        return self.workloads[0] if name is None else name

    def _findings(self, **options: Any) -> "Findings":
        from wattlaw.report.stores import read_findings

        options["decisions"] = tuple(self._decisions())
        return read_findings(self._stores, *self._tables, **options)


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
