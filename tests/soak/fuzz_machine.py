"""Generators of environments, command lines, saved limits, Slurm's words and drivers' answers."""

import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

from soak import mutate, templates
from soak.case import Case, Entry

_VARIABLES = (
    "WATTLAW_HOST", "WATTLAW_SYSFS_ROOT", "WATTLAW_LIMITS_DIR",
    "WATTLAW_SLURM_REPORTS",
    "WATTLAW_RUN_FOLDER", "WATTLAW_ATTEMPT", "WATTLAW_AGENT_PID", "WATTLAW_RENDEZVOUS_FILE",
    "WATTLAW_WARNS",
    "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES", "SLURM_JOB_ID",
    "SLURM_JOB_GPUS",
    "SLURM_STEP_GPUS", "SLURM_NODEID", "SLURM_JOB_NODELIST", "SLURM_CLUSTER_NAME",
    "SLURMD_NODENAME",
    "SLURM_JOB_PARTITION", "SLURM_TOPOLOGY_ADDR", "SLURM_TOPOLOGY_ADDR_PATTERN", "RANK",
    "WORLD_SIZE", "LOCAL_RANK",
    "COLUMNS", "LINES", "TERM", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TZ", "LANG",
    "LC_ALL", "LC_NUMERIC",
    "HOME", "USER", "PATH", "OMP_NUM_THREADS", "XDG_STATE_HOME", "XDG_CACHE_HOME", "TMPDIR", "PWD",
)  # fmt: skip
_SPECIAL = {
    "CUDA_VISIBLE_DEVICES": ("", "0", "1,0", "0,0", "-1", "7", "GPU-", "GPU-fa4e0000", "MIG-0",
    "0,x", "NoDevFiles", " 0"),
    "COLUMNS": ("0", "1", "5", "-1", "99999", "80x"), "TZ": ("UTC", "Nowhere/City", "/etc/passwd",
    ":", "x" * 300),
    "LC_ALL": ("C", "POSIX", "de_DE.UTF-8", "tr_TR.UTF-8", "xx"), "PATH": ("", "/nowhere", "."),
    "TERM": ("dumb", "xterm", ""), "FORCE_COLOR": ("1",),
    "WATTLAW_SYSFS_ROOT": ("{inputs}", "/nowhere", "/proc"), "WATTLAW_LIMITS_DIR": ("{inputs}",
    "/proc", "/nowhere/x", "{inputs}/table.csv"),
    "TMPDIR": ("{root}/tmp",), "HOME": ("/nowhere", "{root}/home", ""),
    "XDG_STATE_HOME": ("{root}/home/x", "/proc", ""),
}  # fmt: skip
_PLAIN = (
    ("devices",), ("devices", "--json"), ("limits", "show"), ("limits", "show", "--json"),
    ("limits", "restore"),
    ("workloads",), ("check", "{inputs}/study.yaml"), ("run", "{inputs}/study.yaml", "--dry-run",
    "--store", "{work}/s"),
    ("status", "{inputs}/store"), ("fit", "{inputs}/table.csv", "--x", "gpus", "--y", "time"),
    ("--version",), ("--help",),
    ("simulate", "--workload", "resnet50", "--hardware", "mit-v100", "--local-batch", "32"),
    ("simulate", "--list-hardware"),
    ("limits", "set", "--power-limit", "150"),
)  # fmt: skip
_FILES = {
    "study.yaml": Entry(
        data=b"name: t\nworkloads: [{name: digits-cnn}]\n"
        b"sweeps: [{gpus: [1, 2], local_batch: [32]}]\n"
    ),
    "table.csv": Entry(data=templates.TABLE.encode()),
    "store": Entry("template", text="store"),
}


def environments(dice: random.Random, _: Path) -> Case:
    env: dict[str, str | None] = {}
    for _ in range(dice.choice([1, 1, 2, 4])):
        name = dice.choice(_VARIABLES)
        if name in _SPECIAL and (
            dice.random() < 0.7 or name in ("TMPDIR", "HOME", "XDG_STATE_HOME")
        ):
            env[name] = dice.choice(_SPECIAL[name])
        else:
            text = dice.choice([mutate.token(dice)[:5000], str(dice.choice(mutate.NUMBERS))[:400]])
            env[name] = text.replace("\0", "").encode("utf-8", "replace").decode()
    argv = dice.choice(_PLAIN)
    files = {
        name: entry for name, entry in _FILES.items() if name != "store" or argv[0] == "status"
    }
    encoding = dice.choice(["utf-8"] * 8 + ["ascii", "latin-1"])
    return Case(
        "environments", argv, files, env, outputs=("s",), encoding=encoding, changes_inputs=True
    )


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


# ---- Slurm's commands ----
_NAME = "wattlaw-00aa00aa-00000000000000aa"
_SQUEUE = f"{'12':<20}{'RUNNING':<24}{'0':<12}{_NAME:<64}{'None':<60}\n"
_SACCT = "1|COMPLETED|0:0|7200|1000|1060\n2.batch|CANCELLED by 7|1:9|0|1000|Unknown\n"


def slurm(dice: random.Random, _: Path) -> Case:
    """Return what Slurm's commands might print."""
    text = dice.choice(
        [_SQUEUE * dice.choice([1, 3]), _SACCT, "123;cluster\n", "slurm 22.05.8\n", "n1\nn2\n"]
    )
    text = mutate.text(dice, text, dice.choice([1, 2, 8]))
    return Case("Slurm's answers", call="slurm_texts", options={"text": text})


# ---- the driver ----
_FIELDS = (
    "limit_min_mw", "limit_max_mw", "limit_default_mw", "limit_mw", "clamp_mw", "sm_clock_mhz",
    "mem_clock_mhz",
    "clock_min_mhz", "clock_max_mhz", "counter_mode", "refresh_ms", "instant_power",
    "average_power", "buffers",
    "buffer_period_ms", "buffer_length", "sm_util_high", "mem_util_high", "temperature_c", "gpm",
    "mig_mode", "mig_count",
    "persistence", "memory_used", "memory_total", "name", "uuid", "low_w", "high_w", "period_s",
    "lost_ns", "minor",
)  # fmt: skip
_FUNCTIONS = (
    "nvmlInit_v2", "nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetUUID",
    "nvmlDeviceGetName",
    "nvmlDeviceGetPowerUsage", "nvmlDeviceGetTotalEnergyConsumption",
    "nvmlDeviceGetUtilizationRates", "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetFieldValues", "nvmlDeviceGetSamples",
    "nvmlDeviceGetTemperature",
    "nvmlDeviceGetPowerManagementLimit", "nvmlDeviceGetPowerManagementLimitConstraints",
    "nvmlDeviceGetClockInfo",
    "nvmlDeviceGetViolationStatus", "nvmlDeviceGetMigMode", "nvmlDeviceGetPersistenceMode",
    "nvmlDeviceGetIndex",
)  # fmt: skip
_TEXTS = ("", "x", "GPU-\x1b[31m", "é" * 10, "\u202eabc", "a\nb", "x" * 63)


def drivers(dice: random.Random, _: Path) -> Case:
    """Return boards whose driver answers something else than a good one."""
    fields = []
    for _ in range(dice.choice([0, 1, 1, 2, 5])):
        name = dice.choice(_FIELDS)
        odd: Any = dice.choice([0, 1, -1, 5, 100, 10**6, 2**31 - 1, -(2**31), 4294967295])
        if name in ("name", "uuid"):
            odd = dice.choice(_TEXTS)
        elif name in ("low_w", "high_w"):
            odd = dice.choice([0.0, -5.0, 1e5, 4294967.295, 1e12])
        elif name == "period_s":
            odd = dice.choice([0.0, 0.05, 1.0])  # shorter ones make the fake driver slow
        elif name in (
            "buffer_period_ms",
            "refresh_ms",
            "buffer_length",
            "mig_count",
            "counter_mode",
        ):
            odd = dice.choice([1, 2, 3, 4, 20, 100])
        fields.append([dice.randrange(2), name, odd])
    faults = [
        [
            dice.choice(_FUNCTIONS),
            dice.choice([-1, 0, 1]),
            dice.choice([1, 3, 4, 6, 7, 9, 15, 16, 999]),
            dice.choice([0, 1, 5]),
        ]
        for _ in range(dice.choice([0, 1, 1, 2, 3]))
    ]
    options = {"fields": fields, "faults": faults}
    return Case("NVML answers", call="driver", options=options)
