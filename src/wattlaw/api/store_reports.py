"""Figures, the report and the proposal of one or several stores, and its tables as files."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa

from wattlaw.analysis.laws.series import fit_metrics
from wattlaw.api.arguments import counts
from wattlaw.api.questions import question_or_decided, read_question
from wattlaw.api.store_tables import FRAMES, StoreTables, checked_scope
from wattlaw.common import registry
from wattlaw.common.errors import BadInput, Refused
from wattlaw.common.scopes import OUTERMOST
from wattlaw.common.text import quote, short_repr
from wattlaw.exporting import GROUP, Exported, Exporter
from wattlaw.report.tables import as_html
from wattlaw.store.schema import TABLES
from wattlaw.store.table_files import KINDS, write_table
from wattlaw.study.question import PRICES, asks, check_names

if TYPE_CHECKING:
    import altair as alt

    from wattlaw.analysis.advise.advice import Advice
    from wattlaw.analysis.decide.decision import Decision
    from wattlaw.analysis.findings import Findings
    from wattlaw.study.question import Question

#: The tables that ``export`` writes.
EXPORTS = (*FRAMES, "fits")


@dataclass(frozen=True)
class Report:
    """The files of a report: the page, and the figures where a folder for them was named."""

    page: Path
    figures: tuple[Path, ...] = ()

    __repr__ = short_repr

    def to_dict(self) -> dict[str, Any]:
        """Return plain Python."""
        return {"page": str(self.page), "figures": [str(path) for path in self.figures]}

    def to_frame(self) -> pd.DataFrame:
        """Return a row per file."""
        files = [self.page, *self.figures]
        return pd.DataFrame({"file": map(str, files), "bytes": [f.stat().st_size for f in files]})

    def _repr_html_(self) -> str:
        return as_html(self.to_frame())


@dataclass(frozen=True)
class StoreReports(StoreTables):
    """What is written from the runs of one or several stores."""

    @property
    def figures(self) -> tuple[str, ...]:
        """The names of the figures that ``plot`` draws."""
        from wattlaw.report.core_sections import gallery

        return tuple(figure.name for figure in gallery())

    def plot(
        self, figure: str, *, reference: int | None = None, energy_scope: str | None = None
    ) -> "alt.ConcatChart":
        """Return a figure of the report as an Altair chart.

        Parameters
        ----------
        figure
            A name of ``figures``, such as ``energy_speed``.
        reference
            The GPU count that speedups are relative to; by default each series' smallest.
        energy_scope
            As in ``advise``.

        Raises
        ------
        wattlaw.common.errors.BadInput
            There is no such figure.
        wattlaw.common.errors.Refused
            The runs do not have what the figure shows.

        Examples
        --------
        >>> chart = wattlaw.open("results").plot("speedup")
        >>> chart.to_dict()["title"]["text"]
        'Speedup'
        """
        import altair as alt

        from wattlaw.report.core_sections import gallery

        figures = {each.name: each for each in gallery()}
        if figure not in figures:
            raise BadInput(f"figure: given {quote(figure)}; allowed: {', '.join(figures)}")
        first = None if reference is None else counts("reference", reference)[0]
        asked = first, checked_scope(energy_scope) or OUTERMOST
        if asked not in self._plotted:
            self._plotted[asked] = self._findings(reference=first, energy_scope=asked[1])
        picture = figures[figure].picture(self._plotted[asked])
        if picture is None:
            raise Refused(f"figure {figure}: these runs do not have what it shows")
        return alt.ConcatChart.from_dict(picture.spec)

    @cached_property
    def _plotted(self) -> "dict[tuple[int | None, str], Findings]":
        return {}  # by the arguments of ``plot``

    @asks(PRICES)
    def report(
        self,
        path: str | PathLike[str] = "report.html",
        *,
        template: str | None = None,
        interactive: bool = False,
        figures: str | PathLike[str] | None = None,
        energy_scope: str | None = None,
        **asked: Any,
    ) -> Report:
        """Write the report, an HTML page that needs no network.

        Parameters
        ----------
        path
            The page. Its folder is created if necessary.
        template
            A layout of an add-on, such as ``mit-2022``.
        interactive
            Draw the figures with Vega: they show values and zoom, and tables can be sorted.
        figures
            A folder for the figures as PNG and SVG files.
        energy_scope
            As in ``advise``. By default, what add-ons show of a study counts what that
            study counted.
        **asked
            Prices and the carbon of the grid, as in ``advise``.

        Examples
        --------
        >>> wattlaw.open("results").report("report.html").page.name
        'report.html'
        """
        from wattlaw.report.core_sections import figures_of, layout
        from wattlaw.report.page import write_report
        from wattlaw.report.pictures import draw_pictures, write_figures

        check_names(self.report, asked)
        page, chosen = Path(path), layout(template)
        scope = checked_scope(energy_scope)
        energy = scope or chosen.energy_scope
        findings = self._findings(asked, reference=chosen.reference, energy_scope=energy)
        pictures = [*draw_pictures(findings, figures_of(chosen))]
        write_report(findings, page, chosen, pictures, energy_scope=scope, interactive=interactive)
        files = [] if figures is None else write_figures(pictures, Path(figures))
        return Report(page, tuple(files))

    @asks(PRICES)
    def proposal(
        self,
        path: str | PathLike[str] = "proposal.html",
        *,
        nodes: int | None = None,
        workload: str | None = None,
        runs: int = 1,
        epochs: int | None = None,
        steps: float | None = None,
        total_samples: float | None = None,
        tokens: float | None = None,
        sequence_length: int | None = None,
        rule: float | None = None,
        energy_scope: str | None = None,
        **asked: Any,
    ) -> Report:
        """Write two pages for a compute-time proposal: scaling, planned campaign and method.

        Parameters
        ----------
        path
            The page; Markdown where its name ends in ``.md``.
        nodes
            The number of nodes of a training, by default those of the recommended setting. On other
            nodes, its batch and limits are planned, where runs have them. Counts that did not run
            are predicted.
        workload
            The workload. By default that of the stores' study, else the only one.
        runs, epochs
            The number of trainings, and epochs of each, by default those of most runs.
        steps, total_samples, tokens
            The length of a training instead of epochs. Steps are of the planned global batch; what
            is planned is then recommended for the epochs of most runs.
        sequence_length
            The tokens of a sample, for ``tokens``.
        rule
            The least speedup per doubling of GPUs that a centre asks for, such as 1.5.
        energy_scope, **asked
            As in ``report``.

        Raises
        ------
        wattlaw.common.errors.Refused
            No run of the workload is done or has the batch that is recommended, or the time of a
            training is not known.
        wattlaw.common.errors.BadInput
            A number is out of range, or the runs do not name their nodes, or use several and
            nothing is recommended.

        Examples
        --------
        >>> wattlaw.open("results").proposal("proposal.html", nodes=4).page.name
        'proposal.html'
        """
        from wattlaw.analysis.planned_campaign import Campaign, propose
        from wattlaw.report.proposal_pages import write_proposal

        check_names(self.proposal, asked)
        name = self._workload(workload)
        scope = checked_scope(energy_scope) or OUTERMOST
        plan = Campaign(nodes, runs, epochs, steps, total_samples, tokens, sequence_length, rule)
        asked_for = asked | {"epochs": epochs, "total_samples": plan.samples}
        one = {name: question_or_decided(asked_for, self._decision_of(name))}
        findings = self._findings(asked, energy_scope=scope, asked_workloads=(*one,), questions=one)
        files = write_proposal(propose(findings, name, plan), Path(path))
        return Report(files[0], tuple(files[1:]))

    def export(self, what: str, path: str | PathLike[str]) -> Exported:
        """Write a table, or a file of another format; return the files and their number of rows.

        Parameters
        ----------
        what
            A table of ``EXPORTS``, such as ``runs``; or an exporter, such as ``bundle``.
        path
            The file. Its ending selects the kind.

        Examples
        --------
        >>> wattlaw.open("results").export("bundle", "study.zip").files[0].name
        'study.zip'
        """
        output = Path(path)
        names = registry.names(GROUP)
        if what not in (*EXPORTS, *names):
            raise BadInput(f"what: given {quote(what)}; allowed: {', '.join((*EXPORTS, *names))}")
        exporter: Exporter | None = registry.load(GROUP, what)() if what in names else None
        endings = KINDS if exporter is None else exporter.endings
        if (end := output.suffix).lower() not in endings:
            raise BadInput(f"{output}: unknown ending {end!r}; allowed: {', '.join(endings)}")
        output.parent.mkdir(parents=True, exist_ok=True)
        if exporter is not None:
            return exporter.write(self, output)
        if what in TABLES:
            rows = self.arrow(what)
        else:
            frame = fit_metrics(self.metrics).to_frame() if what == "fits" else self.table(what)
            rows = pa.Table.from_pandas(frame, preserve_index=False)
        write_table(output, rows)
        return Exported((output,), len(rows))

    def advice_on_each(self) -> "tuple[tuple[Advice, ...], tuple[tuple[str, str], ...]]":
        """Return the advice on each workload, and those that have none with the reason."""
        from wattlaw.analysis.findings import advise_each

        tables = self._present_metrics(), self.epochs, self._present_tables[0]
        return advise_each(*tables, self._questions(None), **self._words)

    def _questions(
        self, prices: Mapping[str, Any] | None
    ) -> dict[str, "tuple[Question, Decision | None]"]:
        decisions = tuple(self._decisions())
        return {item.workload: question_or_decided(prices or {}, item)
                for item in reversed(decisions)}  # fmt: skip

    def _findings(self, prices: Mapping[str, Any] | None = None, **options: Any) -> "Findings":
        from wattlaw.analysis.findings import analyse
        from wattlaw.store.statistics import read_telemetry

        options = {
            "decisions": tuple(self._decisions()), "questions": self._questions(prices),
            "footprint": read_question(prices or {}).footprint, **self._words,
            "asked_workloads": self.asked_workloads,
        } | options  # fmt: skip
        runs, epochs = self._present_tables
        statistics, joint = read_telemetry(self._stores, runs)
        return analyse(runs, epochs, statistics=statistics, joint=joint, **options)
