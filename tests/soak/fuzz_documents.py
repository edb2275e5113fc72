"""A generator of study files."""

import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from soak import mutate, templates
from soak.case import Case, Entry

#: Beyond them a shuffled grid costs the soak more than it finds.
_HUGE = 300
_SWEEP = {
    "gpus": (1, 2, 4, 8, 64, 3), "local_batch": (1, 16, 32, 128), "global_batch": (64, 128, 63,
    4096),
    "power_limit_w": (None, 100, 150.5, 250), "clock_limit_mhz": (None, 735, 1410),
    "precision": ("fp32", "tf32", "bf16", "fp16", "fp8"),
    "dataset_fraction": (0.1, 1.0, "gpus/256", "1/gpus", 2, "0/gpus"), "workloads": ("digits-cnn",),
}  # fmt: skip
_TRAIN = {
    "compile": True,
    "gradient_accumulation": 2,
    "bucket_mb": 1e5,
    "seed": 2**31,
    "prefetch": 0,
}
_WORKLOADS = ("digits-cnn", "resnet50", "bert-base", "dimenet", "no-such", "broken", "")


_studies = cache(templates.studies)


def studies(dice: random.Random, _: Path) -> Case:
    kind = dice.random()
    if kind < 1 / _HUGE:
        text = _huge(dice)
    elif kind < 0.3:
        text = mutate.text(dice, dice.choice(_studies()), dice.choice([1, 1, 2, 5, 20]))
    elif kind < 0.6:
        tree = mutate.data(dice, yaml.safe_load(dice.choice(_studies())), dice.choice([1, 1, 2, 4]))
        text = _dumped(dice, tree)
    elif kind < 0.9:
        text = _dumped(dice, _grammar(dice))
    else:
        text = ""
    data = text.encode("utf-8", "surrogatepass")
    if not text:
        data = mutate.raw(dice, dice.choice(_studies()).encode())
    argv = ("check", "{inputs}/study.yaml")
    if dice.random() < 0.25:
        argv = ("run", "{inputs}/study.yaml", "--dry-run", "--store", "{work}/store")
        argv += ("--launch", "simulated", "--hardware", "mit-v100") if dice.random() < 0.3 else ()
    return Case("study files", argv, {"study.yaml": Entry(data=data)})


def _grammar(dice: random.Random) -> dict[str, Any]:
    """Return a study that is mostly right, with wrong values here and there."""

    def some(values: tuple[Any, ...]) -> list[Any]:
        found = [dice.choice(values) for _ in range(dice.choice([0, 1, 1, 2, 3]))]
        return [mutate.value(dice) if dice.random() < 0.03 else one for one in found]

    workloads: list[Any] = [
        {"name": dice.choice(_WORKLOADS)} for _ in range(dice.choice([0, 1, 1, 2]))
    ]
    for one in workloads:
        if dice.random() < 0.3:
            one["options"] = {dice.choice(["lr", "width", "x"]): mutate.value(dice)}
    if dice.random() < 0.3:
        words = [
            "python",
            "train.py",
            dice.choice(["{local_batch}", "{gpus", "{0}", "{{}}", "{seed!r}"]),
        ]
        workloads.append({"command": [*words, mutate.token(dice)[:100]]})
    sweeps = [
        {name: some(values) for name, values in _SWEEP.items() if dice.random() < 0.4}
        for _ in range(dice.choice([0, 1, 1, 2, 4]))
    ]
    study: dict[str, Any] = {"name": "fuzz", "workloads": workloads, "sweeps": sweeps}
    extra: dict[str, Any] = {
        "repeats": dice.choice([1, 3, 100, 10**6, 0]), "order": dice.choice(["random",
        "as_written", 1]),
        "order_seed": dice.choice(mutate.NUMBERS),
        "measure": {"epochs": dice.choice([1, 3, 10**5, 10**6]), "warmup_epochs": dice.choice([0,
        1, 3])},
        "train": {name: v for name, v in _TRAIN.items() if dice.random() < 0.3},
        "launch": {
            "kind": dice.choice(["local", "slurm", "simulated", "x"]),
            "gpus_per_node": dice.choice([1, 4, None]),
            **dice.choice([{}, {"slurm": {"time": mutate.token(dice)}},
            {"simulation": {"hardware": mutate.token(dice)}}]),
        },
    }  # fmt: skip
    study |= {name: value for name, value in extra.items() if dice.random() < 0.5}
    return mutate.data(dice, study) if dice.random() < 0.3 else study


def _huge(dice: random.Random) -> str:
    """Return a grid of very many runs in a small file."""
    one, other = (dice.choice([10, 400, 5000, 49_000]) for _ in range(2))
    first = ",".join(str(k) for k in range(1, one + 1))
    second = ",".join(str(k) for k in range(1, other + 1))
    field = dice.choice(["local_batch", "global_batch"])
    cap = dice.choice(["", f", power_limit_w: [{second}]", ", dataset_fraction: [1/gpus]"])
    repeats = dice.choice([1, 1000, 2**62])
    sweeps = ", ".join([f"{{gpus: [{first}], {field}: [{second}]{cap}}}"] * dice.choice([1, 1, 2]))
    return (
        f"name: huge\nworkloads: [{{name: digits-cnn}}]\nsweeps: [{sweeps}]\nrepeats: {repeats}\n"
    )


def _dumped(dice: random.Random, tree: Any) -> str:
    try:
        return yaml.safe_dump(
            tree,
            default_flow_style=dice.choice([None, True, False]),
            sort_keys=dice.random() < 0.3,
            allow_unicode=dice.random() < 0.5,
            width=dice.choice([80, 10**6]),
        )
    except (yaml.YAMLError, RecursionError, ValueError, UnicodeError):
        return json.dumps(tree)
