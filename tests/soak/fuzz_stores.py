"""Generators of damaged stores, and of the live files of a run that is to be finished."""

import json
import random
from pathlib import Path

from soak import mutate
from soak.case import Case, Entry
from soak.templates import HOST, RUN_ID

#: Commands with the share of the inputs that they get; the last ones take seconds.
COMMANDS: tuple[tuple[float, tuple[str, ...], tuple[str, ...]], ...] = (
    (40, ("status", "STORE"), ()),
    (10, ("status", "STORE", "--json"), ()),
    (12, ("export", "STORE", "runs", "-o", "{work}/o.csv"), ("o.csv",)),
    (6, ("export", "STORE", "epochs", "-o", "{work}/o.jsonl"), ("o.jsonl",)),
    (6, ("export", "STORE", "telemetry", "-o", "{work}/o.parquet"), ("o.parquet",)),
    (1.5, ("export", "STORE", "metrics", "-o", "{work}/o.csv"), ("o.csv",)),
    (1.5, ("export", "STORE", "settings", "-o", "{work}/o.csv"), ("o.csv",)),
    (1.5, ("export", "STORE", "statistics", "-o", "{work}/o.csv"), ("o.csv",)),
    (1, ("export", "STORE", "fits", "-o", "{work}/o.csv"), ("o.csv",)),
    (2, ("fit", "STORE"), ()),
    (1, ("fit", "STORE", "--json"), ()),
    (1, ("advise", "STORE", "-w", "digits-cnn"), ()),
    (0.5, ("claims", "STORE"), ()),
    (0.15, ("report", "STORE", "-o", "{work}/r.html"), ("r.html",)),
    (1, ("compare", "STORE", "STORE", "--json"), ()),
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
        return Entry(
            data=json.dumps(tree, ensure_ascii=dice.random() < 0.5).encode("utf-8", "surrogatepass")
        )
    if source.suffix == ".parquet" and how < 0.6 and given:
        return Entry(data=_other_table(dice, source))
    return Entry(data=mutate.raw(dice, given))


def _other_table(dice: random.Random, source: Path) -> bytes:
    import io

    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table(source)
    column = dice.randrange(table.num_columns)
    name, size = table.schema.names[column], table.num_rows
    how = dice.random()
    try:
        if how < 0.2:
            table = table.drop_columns([name])
        elif how < 0.3:
            table = table.rename_columns(
                [mutate.token(dice)[:50] if n == name else n for n in table.schema.names]
            )
        elif how < 0.8:
            values = [mutate.value(dice)] * size
            table = table.set_column(column, name, pa.array(values))
        elif how < 0.9:
            table = pa.concat_tables([table] * dice.choice([2, 50])) if size < 1000 else table
        else:
            table = table.slice(0, 0)
        buffer = io.BytesIO()
        pq.write_table(table, buffer)
        return buffer.getvalue()
    except (pa.ArrowException, OverflowError, ValueError, TypeError, UnicodeError):
        return mutate.raw(dice, source.read_bytes())


def _thing(dice: random.Random) -> Entry:
    """Return what is no file: what an attacker or a broken disk puts in a file's place."""
    return dice.choice(
        [
            Entry("fifo"), Entry("dir"), Entry("link", text="/dev/zero"), Entry("link",
            text="/dev/null"),
            Entry("link", text="nowhere"), Entry("link", text="."), Entry("sparse", size=8 << 30),
            Entry(data=b"{}"), Entry(data=b""), Entry(data=b"x", mode=0), Entry("link",
            text="/proc/self/mem"),
        ]
    )  # fmt: skip


def live_runs(dice: random.Random, templates: Path) -> Case:
    """Return a run to be finished, of which some live files are damaged."""
    live = f"live/{RUN_ID}/live/1"
    names = [
        f"windows.{HOST}.csv",
        f"telemetry.{HOST}.csv",
        f"sampler.{HOST}.json",
        f"facts.{HOST}.json",
    ]
    names += [f"{kind}.{HOST}.json" for kind in ("limits", "ended", "failure")]
    names += ["stopped.json", "checkpointed.json"]
    files = {"live": Entry("template", text="live")}
    is_whole = True
    for _ in range(dice.choice([1, 1, 2])):
        name = dice.choice(names)
        source = templates / live / name
        given = (
            source.read_bytes() if source.exists() else b'{"reason": "x", "epoch": 1, "step": 2}'
        )
        if name.startswith("windows") or name == "stopped.json":
            is_whole = False
        if name.endswith("json") and dice.random() < 0.6:
            tree = mutate.data(dice, json.loads(given), dice.choice([1, 2]))
            given = json.dumps(tree).encode()
        elif dice.random() < 0.12:
            files[f"{live}/{name}"] = _thing(dice)
            continue
        else:
            given = mutate.raw(dice, given) if dice.random() < 0.6 else mutate.text(
                dice, given.decode(), dice.choice([1, 2, 5])).encode("utf-8",
                "surrogatepass")  # fmt: skip
        files[f"{live}/{name}"] = Entry(data=given)
    options = {"is_whole": is_whole}
    return Case(
        "live files of a run", files=files, call="live_run", options=options, changes_inputs=True
    )
