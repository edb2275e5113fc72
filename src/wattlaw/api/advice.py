"""What to run: the recommended setting, its alternatives, and the text that explains them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pandas as pd

from wattlaw.analysis.advice import advice as analysis
from wattlaw.analysis.advice.option import Doubling, Option
from wattlaw.api.display import as_html
from wattlaw.formatting import duration_text, energy_text, estimate_text, limit_label, number

_MAX_OPTIONS = 20  # options that a text table shows; the frame has all
_SETTINGS = ("cap", "clock", "batch", "precision", "hardware")
_ALWAYS_SHOWN = ("gpus", "batch", "known by")


@dataclass(frozen=True)
class Advice(analysis.Advice):
    """What to run.

    ``recommended`` is None where no setting meets the constraints; ``nearest`` is
    then the option that exceeds them least. ``print(advice)`` shows the explanation.
    """

    @classmethod
    def of(cls, advice: analysis.Advice) -> "Advice":
        """Return an advice of the analysis with the methods of the API."""
        return cls(**vars(advice))

    def to_frame(self) -> pd.DataFrame:
        """Return the Pareto front of time and energy: a row per option.

        ``recommended`` marks the recommended option. The 95 % interval of a quantity is in
        ``<quantity>_low`` and ``<quantity>_high``.
        """
        plain = self.to_dict()
        options = list(plain["pareto"])
        if plain["recommended"] is not None and plain["recommended"] not in options:
            options.append(plain["recommended"])
        return pd.DataFrame(
            [
                {**_flatten(option), "recommended": option == plain["recommended"]}
                for option in options
            ]
        )

    def to_text_frame(self) -> pd.DataFrame:
        """Return the first options of the front as text; ``*`` marks the recommended option.

        Settings that are the same in all options are left out.
        """
        options = list(self.pareto[:_MAX_OPTIONS])
        if self.recommended is not None and self.recommended not in options:
            options.append(self.recommended)
        texts = {
            name: [cell(option) for option in options] for name, cell in _columns(self).items()
        }
        shown = {
            name: column
            for name, column in texts.items()
            if name in (*_ALWAYS_SHOWN, self.time_heading)
            or len({*column}) > 1
            or (name not in _SETTINGS and {*column} != {"-"})
        }
        return pd.DataFrame(shown).rename(columns={"gpus": f"{self.worker}s"})

    @property
    def time_heading(self) -> str:
        """The heading of the time: of the training, or of the unit if that is no epoch."""
        return "time" if self.unit == "epoch" else f"time per {self.unit}"

    @property
    def energy_heading(self) -> str:
        """The heading of the energy."""
        return "energy" if self.unit == "epoch" else f"energy per {self.unit}"

    @property
    def title(self) -> str:
        """The title of the table of options."""
        spent = (
            "energy" if any(option.energy_j for option in self.pareto) else f"{self.worker}-hours"
        )
        return f"Pareto front of time and {spent} (* recommended)"

    @property
    def summary(self) -> tuple[str, ...]:
        """The explanation, as lines of text."""
        option = self.recommended
        if option is None:
            lines = [f"Nothing to recommend for {self.workload}: {self.reason}"]
            if self.nearest is not None:
                lines.append(f"Nearest: {self.nearest.label(self.worker)}.")
                lines.append(self._cost_line(self.nearest))
        else:
            lines = [
                f"Run {self.workload} on {option.label(self.worker)}.",
                self._cost_line(option),
                self.reason,
                self._doubling_line(self.next_doubling),
            ]
        return (*lines, f"Counted: {self.counted}.")

    def __str__(self) -> str:
        return "\n".join([*self.summary, *(f"Warning: {warning}" for warning in self.warnings)])

    def _repr_html_(self) -> str:
        lines = [*self.summary, *(f"Warning: {warning}" for warning in self.warnings), self.title]
        return as_html(self.to_text_frame(), lines)

    @property
    def _source(self) -> str:
        return "simulated" if self.simulated else "measured"

    def _cost_line(self, option: Option) -> str:
        """Return time, energy, GPU-hours, cost and carbon of all epochs, or of one unit."""
        plural = option.amount.mean != 1
        amounts = [duration_text(option.train_time_s)]
        if option.train_energy_j is not None:
            amounts.append(energy_text(option.train_energy_j))
        amounts.append(estimate_text(option.gpu_hours, f"{self.worker}-hours"))
        currency = (self.footprint.currency if self.footprint else None) or ""
        for name, unit in (("cost", currency), ("co2_kg", "kg CO2e")):
            quantity = getattr(option, name)
            if quantity is not None:
                amounts.append(estimate_text(quantity, unit))
        interval = "95 % intervals in brackets" if option.train_time_s.interval else "no intervals"
        source = self._source
        if not option.measured:
            source = f"not {source}: predicted by the law ({option.law})"
        return (
            f"{option.amount.mean:.4g} {option.unit}{'s' * plural} take{'s' * (not plural)} "
            f"{', '.join(amounts)} ({interval}; {source})."
        )

    def _doubling_line(self, doubling: Doubling | None) -> str:
        """Return what twice as many GPUs change."""
        if doubling is None:
            return (
                f"The effect of twice as many {self.worker}s is not known: it was not measured, "
                "and no law reaches that far."
            )
        option, base = doubling.option, doubling.of
        saved_s = base.train_time_s.mean - option.train_time_s.mean
        text = (
            f"Twice as many {self.worker}s ({option.gpus}, same {doubling.rule.replace('_', ' ')}, "
            f"{self._source if option.measured else 'by the law'}) take "
            f"{doubling.time_ratio:.2f} times the time "
            f"({duration_text(abs(saved_s))} {'less' if saved_s >= 0 else 'more'})"
        )
        if doubling.energy_ratio is not None and option.train_energy_j and base.train_energy_j:
            extra_j = option.train_energy_j.mean - base.train_energy_j.mean
            text += (
                f" and {doubling.energy_ratio:.2f} times the energy "
                f"({energy_text(abs(extra_j))} {'more' if extra_j >= 0 else 'less'})"
            )
        hours = option.gpu_hours.mean - base.gpu_hours.mean
        return f"{text}, {hours:+,.3g} {self.worker}-hours."


def _flatten(option: dict[str, Any]) -> dict[str, Any]:
    """Return an option with each interval as two columns."""
    row: dict[str, Any] = {}
    for name, value in option.items():
        if name.endswith("_ci"):
            row[f"{name[:-3]}_low"], row[f"{name[:-3]}_high"] = value or (None, None)
        else:
            row[name] = value
    return row


def _columns(advice: Advice) -> dict[str, Callable[[Option], str]]:
    """Return the text of each column for an option; ``-`` for a missing value."""

    def gpus(option: Option) -> str:
        return f"{option.gpus} *" if option == advice.recommended else str(option.gpus)

    def mean(name: str) -> Callable[[Option], str]:
        def cell(option: Option) -> str:
            quantity = getattr(option, name)
            return "-" if quantity is None else number(quantity.mean)

        return cell

    def compact(text: str) -> str:
        return text.replace(" to ", "–")

    return {
        "gpus": gpus,
        "cap": lambda option: limit_label("power_limit_w", option.setting["power_limit_w"]),
        "clock": lambda option: limit_label("clock_limit_mhz", option.setting["clock_limit_mhz"]),
        "batch": lambda option: str(option.setting["global_batch"] or "-"),
        "precision": lambda option: str(option.setting["precision"] or "-"),
        "hardware": lambda option: str(option.setting["hardware"] or "-"),
        advice.time_heading: lambda option: compact(duration_text(option.train_time_s)),
        advice.energy_heading: lambda option: (
            compact(energy_text(option.train_energy_j)) if option.train_energy_j else "-"
        ),
        "cost": mean("cost"),
        "kg CO2e": mean("co2_kg"),
        "known by": lambda option: (
            f"{option.repeats} run{'s' * (option.repeats > 1)}"
            if option.measured
            else f"law ({option.law})"
        ),
    }
