"""Which argument of a command carries the batch that a short run of it has shown."""

from wattlaw.common.errors import BadInput
from wattlaw.running.first_study import Seen
from wattlaw.study.command import Argument, arguments


def batch_candidates(seen: Seen) -> list[Argument]:
    """Return the arguments with the batch of a rank, or of all, those named after it first."""
    batches = {str(seen.global_batch), str(seen.local_batch).removesuffix(".0")}
    if seen.layout.model_gpus > 1 and seen.gradient_accumulation in (None, 1):
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


def fixed_batch(seen: Seen) -> int | None:
    """Return the batch of a worker that no argument sets; None if an argument may, or unknown."""
    local = seen.local_batch
    is_fixed = local is not None and local == int(local) and seen.layout.model_gpus == 1
    return int(local) if local and is_fixed and not batch_candidates(seen) else None


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
