"""What a short run of a command has shown of a training, and which arguments carry it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

from wattlaw.common.errors import BadInput
from wattlaw.common.formatting import number, plural
from wattlaw.study.command import Argument, arguments, epochs_argument
from wattlaw.study.labels import threads_label
from wattlaw.study.setting import MODEL_SIZES

#: The parts of a layout that a run shows, where they are not those of a data-parallel job.
LAYOUT = (*MODEL_SIZES, "ep", "sharding")
#: How the arguments are named that carry a layout.
_NAMES = {
    "tp": r"\btp\b|tensor", "pp": r"\bpp\b|pipe", "cp": r"\bcp\b|context", "ep": r"\bep\b|expert",
    "sharding": r"shard|zero|fsdp|parallel", "micro_batch": r"micro",
    "gradient_accumulation": r"accum",
}  # fmt: skip


@dataclass(frozen=True)
class Seen:
    """What a short run has shown of a training; None is what it has not shown."""

    command: tuple[str, ...]  # of one rank
    ranks: int
    step_s: float
    beside_s: float  # of the run beside its steps: start-up and end
    launch_with: str = "auto"
    global_batch: int | None = None
    gradient_accumulation: int | None = None
    precision: str | None = None
    parallelism: str | None = None
    is_parallel: bool = True  # it can train on several GPUs, as far as is known
    peak_memory_bytes: int | None = None  # of a rank
    dataset_samples: int | None = None
    threads: int | None = None  # of a worker
    has_energy: bool = False
    steps: int | None = None  # of the whole training, if it has ended by itself
    needed_steps: int = 0  # of a run, for a mean that is sure enough
    layout: dict[str, Any] = field(default_factory=dict)  # parts of LAYOUT
    network: Mapping[str, Any] | None = None  # sizes of the transformer

    @property
    def model_gpus(self) -> int:
        return prod(self.layout.get(name, 1) for name in MODEL_SIZES)

    @property
    def local_batch(self) -> float | None:
        return None if self.global_batch is None else self.global_batch / self.ranks

    @property
    def micro_batch(self) -> float | None:
        """Return the samples that a copy of the model processes at once."""
        if self.local_batch is None:
            return None
        return self.local_batch * self.model_gpus / (self.gradient_accumulation or 1)

    @property
    def training_steps(self) -> int | None:
        """Return the steps of the whole training, as it has ended, or by its epochs and samples."""
        said = epochs_argument(self.command)
        epochs = "" if said is None else said.value or ""
        is_known = epochs.isdecimal() and self.dataset_samples and self.global_batch
        if self.steps is not None or not is_known:
            return self.steps
        return int(epochs) * (self.dataset_samples or 0) // (self.global_batch or 1)

    @property
    def carriers(self) -> dict[str, Argument]:
        """Return the argument of each part of the layout that one carries, by name and value."""
        parts = {
            "micro_batch": self.micro_batch,
            "gradient_accumulation": self.gradient_accumulation,
        }
        found: dict[str, Argument] = {}
        for name, value in (self.layout | parts).items():
            text = f"{value:g}" if isinstance(value, float) else str(value)
            for argument in arguments(self.command):
                words = argument.name.replace("_", "-")
                if argument.value == text and re.search(_NAMES[name], words, re.IGNORECASE):
                    found.setdefault(name, argument)
        return found


def seen_text(seen: Seen) -> str:
    layout = seen.layout if seen.model_gpus > 1 else {}
    facts = [
        plural(seen.ranks, "worker"),
        "" if seen.global_batch is None else f"global batch {seen.global_batch:,}",
        f"{number(seen.step_s)} s per step{threads_label(seen.threads)}",
        seen.precision or "",
        seen.parallelism if seen.parallelism not in (None, "none") else "",
        ", ".join(f"{n} {v}".removeprefix("sharding ") for n, v in layout.items()),
    ]
    if seen.peak_memory_bytes is not None:
        facts.append(f"{number(seen.peak_memory_bytes / 1e9)} GB of GPU memory")
    return "Seen: " + ", ".join(filter(None, facts))


def batch_candidates(seen: Seen) -> list[Argument]:
    """Return the arguments with the batch of a rank, or of all, those named after it first."""
    batches = {str(seen.global_batch), str(seen.local_batch).removesuffix(".0")}
    if seen.model_gpus > 1 and seen.gradient_accumulation in (None, 1):
        batches.add(str(seen.micro_batch).removesuffix(".0"))  # of a copy of the model
    others = [each.index for name, each in seen.carriers.items() if name != "micro_batch"]
    found = [argument for argument in arguments(seen.command)
             if argument.value in batches and argument.index not in others]  # fmt: skip
    return sorted(found, key=lambda argument: "batch" not in argument.name)


def named_argument(seen: Seen, name: str) -> Argument:
    """Return the argument that a user has named; ``BadInput`` if its value is not the batch."""

    def plain(text: str) -> str:
        return text.strip("-=").replace("_", "-")

    found = [each for each in arguments(seen.command) if plain(each.name) == plain(name)]
    if not found:
        if others := [each.name for each in batch_candidates(seen) if "batch" in each.name]:
            raise BadInput(f"{name}: not in COMMAND; {others[0]} has the batch that ran")
        raise BadInput(f"{name}: not in COMMAND; add it there with its value")
    value = found[-1].value or ""
    if seen.global_batch is None:
        if not (value.isascii() and value.isdigit() and 0 < int(value) < 10**7):
            raise BadInput(f"{name}: given {value!r:.60}; allowed: a batch, a whole number >= 1")
    elif found[-1] not in batch_candidates(seen):
        raise BadInput(f"{name}: given {value!r:.60}; {batch_text(seen)}")
    return found[-1]


def batch_text(seen: Seen) -> str:
    if seen.global_batch is None:
        return "the samples of a step were not seen, since no DataLoader gave them"
    parts = seen.gradient_accumulation
    of = "" if seen.ranks == 1 else f", {seen.local_batch:g} of each of {seen.ranks} workers"
    text = f"the batch that ran is {seen.global_batch:,}{of}"
    if parts is None or parts == 1:
        return text
    return f"{text}, in {parts} gradient-accumulation steps (try without)"


def has_fixed_batch(seen: Seen) -> bool:
    """Say whether every worker had a batch that no argument sets."""
    local = seen.local_batch
    is_whole = local is not None and local == int(local)
    return is_whole and seen.model_gpus == 1 and not batch_candidates(seen)


def fixed_batch_note(seen: Seen) -> str:
    """Return why a study has one batch only, and how it can have several."""
    found = [each for each in arguments(seen.command) if "batch" in each.name.lower()]
    if found:
        other = f"{found[0].name} says {found[0].value}, and {batch_text(seen)}"
        remedy = f"correct how the script uses {found[0].name}"
    else:
        other = f"{batch_text(seen)}, and no argument of the command sets it"
        remedy = "let the script take one, such as --batch-size, and give it to its DataLoader"
    return f"one batch only: {other}; to compare batches, {remedy}, and run init again"
