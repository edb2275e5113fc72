"""The differences between two sets of results, or between two code versions of a store."""

from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from wattlaw.analysis.advise import store_comparison as analysis
from wattlaw.api.display import as_html
from wattlaw.api.store_tables import StoreTables
from wattlaw.common.errors import BadInput, Refused
from wattlaw.common.text import quote
from wattlaw.report.tables import Table
from wattlaw.report.topics import comparison as text


@dataclass(frozen=True)
class Comparison(analysis.Comparison):
    """The differences of B to A: ``pooled["energy"].percent_ci`` is that of all settings.

    ``print(comparison)`` shows them; ``check("energy > +5%")`` judges a limit.
    """

    @property
    def table(self) -> Table | None:
        """The changes as a table of text."""
        return text.table(self)

    def write(self, path: str | PathLike[str]) -> None:
        """Write an HTML page with the table and a figure."""
        from wattlaw.report.comparison_page import write_comparison

        write_comparison(self, Path(path))

    def __str__(self) -> str:
        return "\n".join([*text.sentences(self), *(f"Warning: {item}" for item in self.warnings)])

    def _repr_html_(self) -> str:
        return as_html(self.to_frame(), str(self).splitlines())


def compare(
    a: StoreTables, b: StoreTables | None, by: str | None, energy_scope: str | None
) -> Comparison:
    """Compare two sets of results, or the last two commits of one with ``by="git_commit"``."""
    of_a = a._metrics_in(energy_scope)
    if b is not None and by is None:
        names = (", ".join(map(str, a.paths)), ", ".join(map(str, b.paths)))
        of_b = b._metrics_in(energy_scope)
        return Comparison(**vars(analysis.compare(of_a, of_b, names)))
    if b is not None or by != "git_commit":
        given = "two stores" if b is not None else f"by {quote(by)}"
        raise BadInput(f"compare: given {given}; allowed: two stores, or one and by git_commit")
    commits = a.runs[a.runs["status"] == "done"].dropna(subset=["git_commit"])
    latest = commits.groupby("git_commit")["started_at"].max().sort_values()
    if len(latest) < 2:
        count = f"{len(latest)} git commits" if len(latest) != 1 else "one git commit"
        raise Refused(f"compare: the done runs are of {count}; two are needed")
    ids = [commits.loc[commits["git_commit"] == commit, "run_id"] for commit in latest.index[-2:]]
    before, after = (of_a[of_a["run_id"].isin(of_commit)] for of_commit in ids)
    first, second = (f"{commit[:12]}{'-dirty' * commit.endswith('-dirty')}"
                     for commit in map(str, latest.index[-2:]))  # fmt: skip
    return Comparison(**vars(analysis.compare(before, after, (first, second))))
