"""Generators of saved limits and the files of a Slurm site."""

import json
import random
from pathlib import Path
from typing import Any

from soak import mutate
from soak.case import Case, Entry


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
