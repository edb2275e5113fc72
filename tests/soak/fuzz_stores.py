"""Generators of files of our own: stores, live files of a run, saved limits, a Slurm site's."""

import io
import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from soak import mutate
from soak.case import Case, Entry
from soak.templates import HOST, RUN_ID

#: Commands with the share of the inputs that they get; the last ones take seconds.
COMMANDS: tuple[tuple[float, tuple[str, ...], tuple[str, ...]], ...] = (
    (40, ("status", "STORE"), ()),
    (12, ("export", "STORE", "runs", "-o", "{work}/o.csv"), ("o.csv",)),
    (6, ("export", "STORE", "epochs", "-o", "{work}/o.jsonl"), ("o.jsonl",)),
    (6, ("export", "STORE", "telemetry", "-o", "{work}/o.parquet"), ("o.parquet",)),
    (1.5, ("export", "STORE", "metrics", "-o", "{work}/o.csv"), ("o.csv",)),
    (1, ("export", "STORE", "fits", "-o", "{work}/o.csv"), ("o.csv",)),
    (2, ("fit", "STORE"), ()),
    (1, ("advise", "STORE", "-w", "digits-cnn"), ()),
    (0.5, ("claims", "STORE"), ()),
    (0.15, ("report", "STORE", "-o", "{work}/r.html"), ("r.html",)),
    (0.5, ("compare", "STORE", "STORE", "-o", "{work}/c.html"), ("c.html",)),
    (2, ("cancel", "STORE"), ()),
)
_KINDS = ("run.json", "epochs.parquet", "telemetry.parquet")
_TEXTS = (
    "study", "reason", "notes", "status", "run_id", "attempts", "facts", "spec", "limits",
    "samplers", "interruptions", "site", "started_at", "schema", "x",
)  # fmt: skip


def stores(dice: random.Random, templates: Path) -> Case:
    """Return a store of which some files are damaged."""
    name = dice.choice(["store", "store", "limits"])
    runs = sorted(path.name for path in (templates / name / "runs").iterdir())
    files = {"store": Entry("template", text=name)}
    for _ in range(dice.choice([1, 1, 1, 2, 4])):
        run, kind = dice.choice(runs), dice.choice(_KINDS)
        path = f"store/runs/{run}/{kind}"
        source = templates / name / "runs" / run / kind
        files[path] = _damaged(dice, source, templates / name / "runs")
        if dice.random() < 0.1:
            files[f"store/{dice.choice(_OTHERS).format(run=run)}"] = _thing(dice)
    if dice.random() < 0.05:
        version = templates / name / "store.json"
        files["store/store.json"] = _damaged(dice, version, templates / name / "runs")
    if dice.random() < 0.03:
        files = {"store": _thing(dice)}
    weights = [weight for weight, _, _ in COMMANDS]
    _, words, outputs = dice.choices(COMMANDS, weights)[0]
    argv = tuple("{inputs}/store" if word == "STORE" else word for word in words)
    changes = words[0] == "cancel"
    return Case("damaged stores", argv, files, outputs=outputs, changes_inputs=changes)


_OTHERS = (
    "cancelled.json", "slurm-tag", "slurm-turn", "runs/x", "runs/{run}/lock", "runs/{run}/job.json",
    "runs/{run}/log.txt", "runs/{run}/live", "runs/{run}/checkpoint.pt", "runs/.hidden",
    "runs/{run}/job-claim",
)  # fmt: skip


def _damaged(dice: random.Random, source: Path, runs: Path) -> Entry:
    how, given = dice.random(), source.read_bytes() if source.exists() else b""
    if how < 0.15:
        return _thing(dice)
    if how < 0.25:  # what belongs to another run, or is another kind of file
        other = dice.choice([path for path in sorted(runs.glob("*/*.*")) if path.is_file()])
        return Entry(data=other.read_bytes())
    if source.name == "run.json" and how < 0.75:
        tree = json.loads(given)
        if dice.random() < 0.3:
            tree[dice.choice(_TEXTS)] = mutate.value(dice)
        else:
            tree = mutate.data(dice, tree, dice.choice([1, 1, 2]))
        text = json.dumps(tree, ensure_ascii=dice.random() < 0.5)
        return Entry(data=text.encode("utf-8", "surrogatepass"))
    if source.suffix == ".parquet" and how < 0.6 and given:
        return Entry(data=_other_table(dice, source))
    return Entry(data=mutate.raw(dice, given))


def _other_table(dice: random.Random, source: Path) -> bytes:
    table, buffer = pq.read_table(source), io.BytesIO()
    column, how = dice.randrange(table.num_columns), dice.random()
    name = table.schema.names[column]
    try:
        if how < 0.2:
            table = table.drop_columns([name])
        elif how < 0.3:
            table = table.rename_columns({name: mutate.token(dice)[:50]})
        elif how < 0.9:
            values = [mutate.value(dice)] * table.num_rows
            table = table.set_column(column, name, pa.array(values))
        else:
            table = table.slice(0, 0)
        pq.write_table(table, buffer)
        return buffer.getvalue()
    except (pa.ArrowException, OverflowError, ValueError, TypeError, UnicodeError):
        return mutate.raw(dice, source.read_bytes())


def _thing(dice: random.Random) -> Entry:
    """Return what is no file: what an attacker or a broken disk puts in a file's place."""
    links = ("/dev/zero", "/dev/null", "nowhere", ".", "/proc/self/mem")
    others = [Entry("fifo"), Entry("dir"), Entry("sparse", size=8 << 30), Entry(data=b"{}")]
    others += [Entry(data=b""), Entry(data=b"x", mode=0)]
    return dice.choice([*others, *(Entry("link", text=target) for target in links)])


def live_runs(dice: random.Random, templates: Path) -> Case:
    """Return a run to be finished, of which some live files are damaged."""
    live, is_whole = f"live/{RUN_ID}/live/1", True
    kinds = ("sampler", "facts", "limits", "ended", "failure")
    names = [f"windows.{HOST}.csv", f"telemetry.{HOST}.csv", "stopped.json", "checkpointed.json"]
    names += [f"{kind}.{HOST}.json" for kind in kinds]
    files = {"live": Entry("template", text="live")}
    for _ in range(dice.choice([1, 1, 2])):
        name = dice.choice(names)
        is_whole = is_whole and not name.startswith(("windows", "stopped"))
        source = templates / live / name
        given = b'{"reason": "x", "epoch": 1, "step": 2}'
        given = source.read_bytes() if source.exists() else given
        how = dice.random()
        if how < 0.1:
            files[f"{live}/{name}"] = _thing(dice)
            continue
        if how < 0.6 and name.endswith("json"):
            given = json.dumps(mutate.data(dice, json.loads(given), dice.choice([1, 2]))).encode()
        elif how < 0.6:
            text = mutate.text(dice, given.decode(), dice.choice([1, 2, 5]))
            given = text.encode("utf-8", "surrogatepass")
        else:
            given = mutate.raw(dice, given)
        files[f"{live}/{name}"] = Entry(data=given)
    options = {"is_whole": is_whole}
    return Case(
        "live files of a run", files=files, call="live_run", options=options, changes_inputs=True
    )


def saved_limits(dice: random.Random, _: Path) -> Case:
    files = _saved(dice, "limits")
    commands = ("show", "restore", "show --json", "set --power-limit 150")
    if dice.random() < 0.5:
        argv = ("limits", *dice.choice(commands).split())
        env = {"WATTLAW_LIMITS_DIR": "{inputs}/limits"}
        return Case("saved limits", argv, files, env, changes_inputs=True)
    return Case("saved limits", files=files, call="saved_limits", changes_inputs=True)


def _saved(dice: random.Random, folder: str) -> dict[str, Entry]:
    """Return saved states of limits, of which many are damaged."""
    device, files = "GPU-fa4e0000-1111-4222-8333-000000000000", {}
    for _ in range(dice.choice([1, 1, 2, 3])):
        state: dict[str, Any] = {
            "device": device, "host": dice.choice(["HOST", "elsewhere"]), "power_limit_w": 217.5,
            "set_w": dice.choice([150.0, None]), "unlock_clock": dice.choice([True, False]),
            "token": "x", "owner_pid": dice.choice([1, 2**22, -1, 0]), "user": "root",
            "made_at": "2025-01-01T00:00:00Z", "boot_id": dice.choice(["BOOT", None, "x"]),
            "kept": dice.choice([True, False]), "job_id": dice.choice([None, "7"]), "node": None,
        }  # fmt: skip
        data = json.dumps(mutate.data(dice, state) if dice.random() < 0.7 else state).encode()
        data = mutate.raw(dice, data) if dice.random() < 0.3 else data
        name = dice.choice([device, device, "other", "..x", "GPU-1", device[:20]])
        kind = dice.choice(["json", "json", "json", "lock", "tmp"])
        is_file = dice.random() < 0.6
        files[f"{folder}/{name}.{kind}"] = Entry(data=data) if is_file else _thing(dice)
    return files


def sites(dice: random.Random, _: Path) -> Case:
    """Return an administrator's files and a job's comment for the Slurm hooks."""
    text = "power_w: {min: 150, max: 350}\nclock_mhz: {min: 600, max: 1300}\n"
    text += "prior_clocks: default\nusers: [ada]\ngrace_s: 0.5\n"
    text = mutate.text(dice, text, dice.choice([0, 1, 1, 3]))
    comments = ["power_w=250", "power_w=9999", "clock_mhz=700,power_w=200", "x"]
    given = {
        "SLURM_JOB_ID": dice.choice(["7", "7", "x", "", "9" * 30]),
        "SLURMD_NODENAME": dice.choice(["n1", "n1", "..", "a/b", ""]),
        "SLURM_JOB_USER": dice.choice(["ada", "eve", mutate.token(dice)[:99]]),
        "SLURM_JOB_RESTART_COUNT": "0",
        "SLURM_JOB_GPUS": dice.choice(["", "0", "0,1", "9", mutate.token(dice)[:99]]),
        "SLURM_JOB_COMMENT": mutate.text(dice, f"wattlaw:{dice.choice(comments)}")[:3000],
    }
    env: dict[str, str | None] = {
        name: value.replace("\0", "").encode("utf-8", "replace").decode()
        for name, value in given.items()
    }
    files = _saved(dice, "state") if dice.random() < 0.5 else {}
    files["site.yaml"] = Entry(data=text.encode("utf-8", "surrogatepass"), mode=0o644)
    options = {"command": dice.choice(["prolog", "prolog", "epilog", "restore", "show"])}
    return Case(
        "Slurm site files", (), files, env, call="site", options=options, changes_inputs=True
    )
