"""Generators of command lines, saved limits and the files of a Slurm site."""

import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

from soak import mutate, templates
from soak.case import Case, Entry

_FILES = {
    "study.yaml": Entry(
        data=b"name: t\nworkloads: [{name: digits-cnn}]\n"
        b"sweeps: [{gpus: [1, 2], local_batch: [32]}]\n"
    ),
    "table.csv": Entry(data=templates.TABLE.encode()),
    "store": Entry("template", text="store"),
}


#: Options by command; an option is given with a random value, or a good one.
_OPTIONS: dict[tuple[str, ...], tuple[str, ...]] = {
    ("check", "STUDY"): (),
    ("run", "STUDY", "--dry-run"): ("--store", "--launch", "--assume-tflops", "--hardware",
    "--fail-share"),
    ("status", "STORE"): ("--json",), ("cancel", "STORE"): (),
    ("fit", "TABLE"): ("--x", "--y", "--by", "--json"),
    ("fit", "STORE"): ("--x", "--y", "--by", "--json"),
    ("advise", "STORE"): (
        "-w", "--deadline", "--max-slowdown", "--energy-budget", "--max-gpu-hours", "--max-gpus",
        "--epochs",
        "--target", "--pue",
        "--grid", "--price", "--price-per-gpu-hour", "--json",
    ),
    ("claims", "STORE"): ("--pue", "--grid", "--json"),
    ("report", "STORE"): ("-o", "--figures", "--kinds", "--template", "--target", "--pue",
    "--grid", "--price"),
    ("import", "TABLE"): ("--map", "--store", "--workload", "--hardware", "--study"),
    ("export", "STORE", "runs"): ("-o",), ("export", "STORE", "VALUE"): ("-o",),
    ("measure",): ("--power-limit", "--clock-limit", "--prior-clocks", "--sample-hz",
    "--assume-cpu-w", "--json"),
    ("devices",): ("--json",), ("limits", "show"): ("--json",), ("limits", "restore"): (),
    ("limits", "set"): ("--power-limit", "--clock-limit", "--prior-clocks", "--gpu"),
    ("site-files", "DIR"): ("--python",),
    ("examples",): (), ("examples", "copy", "VALUE", "DIR"): ("--force",),
    ("workloads",): ("--json",), ("workloads", "show", "VALUE"): (),
    ("workloads", "make-data", "VALUE", "DIR"): ("--size", "--seed"),
    ("workloads", "profile", "VALUE"): ("--options", "-o"),
    ("simulate", "--list-hardware"): ("--hardware", "--json"),
    ("simulate", "--workload", "resnet50", "--hardware", "mit-v100", "--local-batch", "32"): (
        "--options", "--profile", "--samples", "--gpus", "--gpus-per-node", "--local-batch",
        "--global-batch",
        "--power-limits", "--clock-limits", "--power-limit", "--clock-limit", "--precision",
        "--fraction", "--epochs", "--gradient-accumulation",
        "-o", "--json",
    ),
    ("VALUE",): ("--version", "--help"),
}  # fmt: skip
_FLAGS = {"--json", "--dry-run", "--version", "--help", "--list-hardware"}
#: What they write must stay in the sandbox, and what they take must stay small.
_PATHS = {"-o", "--store", "--figures", "--output", "--out"}
_GOOD = (
    "1", "2", "5%", "6h", "90min", "1.2", "DE", "0.21 EUR", "50kWh", "digits-cnn", "none", "fp32",
    "gpus", "time", "mit-v100",
)  # fmt: skip


def arguments(dice: random.Random, _: Path) -> Case:
    command = dice.choice(list(_OPTIONS))
    if command[0] in ("advise", "claims", "report") and dice.random() < 0.7:
        command = ("simulate", "--list-hardware")
    argv = [_word(dice, word) for word in command]
    options = _OPTIONS[command]
    for _ in range(dice.choice([0, 1, 1, 2, 3])):
        if not options:
            break
        option = dice.choice(options)
        argv.append(option)
        if option in _PATHS:
            places = ("/out", "/out.csv", "/out/x/y.html", "")
            argv.append(
                dice.choice([*(f"{{work}}{place}" for place in places), "/nowhere/x.csv", ""])
            )
        elif option in ("--size", "--samples"):
            argv.append(dice.choice(["0", "-1", "3", "x", "", "1.5"]))
        elif option not in _FLAGS:
            argv.append(_value(dice))
    if command[0] == "measure":  # refused before anything is started
        argv += ["--sample-hz", dice.choice(["nan", "0", "-1", "x", "inf"]), "--", "true"]
    if dice.random() < 0.15:
        argv.insert(
            dice.randrange(len(argv) + 1), _value(dice) if command[0] != "measure" else "--json"
        )
    outputs = (
        "out", "out.csv", "wattlaw-store", "wattlaw-results", "report.html",
        "dir", "wattlaw-measure",
    )  # fmt: skip
    if command[-1] == "DIR":  # an empty one is the folder of work
        outputs += ("site.yaml", "wattlaw.conf", "prolog.sh", "epilog.sh")
    given = tuple(word.replace("\0", "") for word in argv)
    # A value that was put in the wrong place can be the name of a file to write.
    outputs += tuple(value for option, value in pairwise(given) if option in (*_PATHS, "--json"))
    changes = "DIR" in command or command[0] == "cancel"
    return Case("command lines", given, _FILES, outputs=outputs, changes_inputs=changes)


def _word(dice: random.Random, word: str) -> str:
    if dice.random() < 0.05 and word.isupper():
        return dice.choice(["", "/", "/dev/null", "/nowhere", "{inputs}", mutate.token(dice)[:300]])
    return {
        "STUDY": "{inputs}/study.yaml",
        "STORE": "{inputs}/store",
        "TABLE": "{inputs}/table.csv",
        "DIR": "{work}/dir",
    }.get(word, _value(dice) if word == "VALUE" else word)


def _value(dice: random.Random) -> str:
    how = dice.random()
    if how < 0.4:
        return dice.choice(_GOOD)
    if how < 0.6:
        return str(dice.choice(mutate.NUMBERS))
    found = mutate.token(dice)
    return found if dice.random() < 0.9 else found + "\udcff"


# ---- limits ----
def saved_limits(dice: random.Random, _: Path) -> Case:
    device = "GPU-fa4e0000-1111-4222-8333-000000000000"
    files: dict[str, Entry] = {}
    for _ in range(dice.choice([1, 1, 2, 3])):
        state: dict[str, Any] = {
            "device": device, "host": dice.choice(["HOST", "elsewhere"]), "power_limit_w": 217.5,
            "set_w": dice.choice([150.0, None]),
            "unlock_clock": dice.choice([True, False]), "token": "x", "owner_pid": dice.choice([1,
            2**22, -1, 0]), "user": "root",
            "made_at": "2025-01-01T00:00:00Z", "boot_id": dice.choice(["BOOT", None, "x"]),
            "kept": dice.choice([True, False]),
            "job_id": dice.choice([None, "7"]), "node": None,
        }  # fmt: skip
        data = json.dumps(mutate.data(dice, state) if dice.random() < 0.7 else state).encode()
        data = mutate.raw(dice, data) if dice.random() < 0.3 else data
        things = [Entry(data=data)] * 6 + [
            Entry("fifo"), Entry("dir"), Entry("link", text="/dev/zero"), Entry("link", text="x"),
            Entry("sparse", size=8 << 30),
        ]  # fmt: skip
        name = dice.choice([device, device, "other", "..x", "GPU-1", device[:20]])
        kind = dice.choice(["json", "json", "json", "lock", "tmp"])
        files[f"limits/{name}.{kind}"] = dice.choice(things)
    if dice.random() < 0.5:
        argv = dice.choice(
            [
                ("limits", "show"),
                ("limits", "restore"),
                ("limits", "show", "--json"),
                ("limits", "set", "--power-limit", "150"),
            ]
        )
        env = {"WATTLAW_LIMITS_DIR": "{inputs}/limits"}
        return Case("saved limits", argv, files, env, changes_inputs=True)
    return Case("saved limits", files=files, call="saved_limits", changes_inputs=True)


def sites(dice: random.Random, _: Path) -> Case:
    """Return an administrator's files and a job's comment for the Slurm hooks."""
    text = "power_w: {min: 150, max: 350}\nclock_mhz: {min: 600, max: 1300}\n"
    text += "prior_clocks: default\nusers: [ada]\ngrace_s: 0.5\n"
    if dice.random() < 0.7:
        text = mutate.text(dice, text, dice.choice([1, 1, 3]))
    comment = dice.choice(
        ["wattlaw:power_w=250", "wattlaw:power_w=9999", "wattlaw:clock_mhz=700,power_w=200", "x"]
    )
    comment = mutate.text(dice, comment, dice.choice([0, 1, 2]))
    env: dict[str, str | None] = {
        "SLURM_JOB_ID": dice.choice(["7", "7", "x", "", "9" * 30]),
        "SLURMD_NODENAME": dice.choice(["n1", "n1", "..", "a/b", ""]),
        "SLURM_JOB_USER": dice.choice(["ada", "eve", mutate.token(dice)[:99]]),
        "SLURM_JOB_RESTART_COUNT": "0",
        "SLURM_JOB_GPUS": dice.choice(["", "0", "0,1", "9", mutate.token(dice)[:99]]),
        "SLURM_JOB_COMMENT": comment[:3000],
    }
    env = {
        n: (v or "").replace("\0", "").encode("utf-8", "replace").decode() for n, v in env.items()
    }
    state = saved_limits(dice, _).files
    files = (
        {name.replace("limits/", "state/"): entry for name, entry in state.items()}
        if dice.random() < 0.5
        else {}
    )
    files["site.yaml"] = Entry(data=text.encode("utf-8", "surrogatepass"), mode=0o644)
    command = dice.choice(["prolog", "prolog", "epilog", "restore", "show"])
    options = {"command": command}
    return Case(
        "Slurm site files", (), files, env, call="site", options=options, changes_inputs=True
    )
