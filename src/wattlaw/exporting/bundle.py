"""Bundles: a ZIP file with the tables of a study and what an archive needs to explain them.

``wattlaw.store.bundle`` reads them. Equal results give equal bytes.
"""

import io
import json
import zipfile
from collections import Counter
from collections.abc import Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from wattlaw.common.files import replacing
from wattlaw.common.formatting import plural, replace_invisible
from wattlaw.common.text import collapse_whitespace
from wattlaw.exporting import Exported, Options, Tables
from wattlaw.store.bundle import MANIFEST, VERSIONS
from wattlaw.store.schema import TABLES, describe_columns
from wattlaw.store.table_files import write_csv
from wattlaw.study.sources import source_of

#: Columns of runs that say where they ran.
_ENVIRONMENT = ("hardware", "launcher", "git_commit", "partition", "backend")
#: The date of all members.
_DATE = (1980, 1, 1, 0, 0, 0)


class Bundle:
    """Tables as Parquet and CSV, study files, environment, description and citation."""

    endings = (".zip",)

    def write(self, tables: Tables, path: Path, options: Options) -> Exported:
        from wattlaw import __version__

        arrow = {
            name: tables.arrow(name).cast(schema).combine_chunks()
            for name, schema in TABLES.items()
        }
        runs = arrow["runs"].to_pylist()
        texts: dict[str, bytes] = {**tables.documents}
        texts["columns.csv"] = files("wattlaw.store").joinpath("columns.csv").read_bytes()
        texts["environment.json"] = _as_json(_environment(runs))
        texts["README.md"] = _readme(runs, arrow, __version__).encode()
        texts["CITATION.cff"] = _citation(runs, __version__)
        rows = {name: len(table) for name, table in arrow.items()}
        texts[MANIFEST] = _as_json({**VERSIONS, "wattlaw": __version__, "rows": rows})
        with replacing(path, durable=False) as temporary, zipfile.ZipFile(temporary, "w") as bundle:
            for name in sorted(texts):
                bundle.writestr(_member(name), texts[name], zipfile.ZIP_DEFLATED)
            for name, table in arrow.items():
                with bundle.open(_member(f"{name}.parquet"), "w", force_zip64=True) as member:
                    pq.write_table(table, member, compression="zstd")
                info = _member(f"{name}.csv", zipfile.ZIP_DEFLATED)
                with (
                    bundle.open(info, "w", force_zip64=True) as member,
                    io.TextIOWrapper(member, "utf-8", newline="") as text,
                ):
                    write_csv(text, table, raw=options.raw)
        return Exported((path,), sum(rows.values()))


def _member(name: str, compression: int = zipfile.ZIP_STORED) -> zipfile.ZipInfo:
    member = zipfile.ZipInfo(name, _DATE)
    member.compress_type = compression
    member.external_attr = 0o100644 << 16
    return member


def _as_json(value: object) -> bytes:
    return (json.dumps(value, indent=1, sort_keys=True) + "\n").encode()


def _environment(runs: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    counts: Counter[str] = Counter()
    for run in runs:
        own = {name: run[name] for name in _ENVIRONMENT}
        counts[json.dumps(own | {"software": json.loads(run["software"])})] += 1
    return [{**json.loads(key), "runs": count} for key, count in sorted(counts.items())]


def _studies(runs: Iterable[Mapping[str, Any]]) -> str:
    names = {collapse_whitespace(replace_invisible(run["study"])) for run in runs}
    return ", ".join(sorted(names)) or "no runs"


def _citation(runs: Iterable[Mapping[str, Any]], version: str) -> bytes:
    studies = _studies(runs)
    authors = [{"name": "wattlaw developers"}]
    software = {"type": "software", "title": "wattlaw", "version": version, "authors": authors}
    content = {
        "cff-version": "1.2.0",
        "message": "If you use these data, please cite them as below.",
        "title": f"Time and energy of training: {studies}",
        "type": "dataset",
        "authors": [{"name": f"The authors of {studies}"}],
        "references": [software],
    }
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True).encode()


def _readme(runs: list[dict[str, Any]], arrow: Mapping[str, pa.Table], version: str) -> str:
    sources = Counter(source_of(run["launcher"]) for run in runs if run["status"] == "done")
    said = ", ".join(f"{plural(count, 'run')} {name}" for name, count in sorted(sources.items()))
    sizes = "\n".join(f"| `{name}` | {len(table):,} |" for name, table in arrow.items())
    template = files("wattlaw.exporting").joinpath("bundle_readme.md").read_text(encoding="utf-8")
    return template.format(
        studies=_studies(runs),
        sources=said or "no runs",
        sizes=sizes,
        version=version,
        columns=columns_in_markdown(),
    )


def columns_in_markdown() -> str:
    lines: list[str] = []
    for row in describe_columns():
        if f"## {row['table']}" not in lines:
            head = "\n| column | type | unit | meaning |\n|---|---|---|---|"
            lines += ["", f"## {row['table']}", head]
        lines.append(f"| `{row['column']}` | {row['type']} | {row['unit']} | {row['meaning']} |")
    return "\n".join(lines[1:]) + "\n"
