"""Bundles: a ZIP file with the tables of a study and what an archive needs to explain them.

Unpacked, it is a store with one import. Equal results give equal bytes.
"""

import io
import zipfile
from collections import Counter
from importlib.resources import files
from pathlib import Path

import pyarrow.parquet as pq

from wattlaw.common.files import replacing
from wattlaw.common.formatting import plural, replace_invisible
from wattlaw.common.text import collapse_whitespace
from wattlaw.exporting import Exported, Tables
from wattlaw.store.schema import TABLES, describe_columns
from wattlaw.store.table_files import write_csv
from wattlaw.store.version import CONTENT
from wattlaw.study.sources import source_of

#: The date of all members.
_DATE = (1980, 1, 1, 0, 0, 0)


class Bundle:
    endings = (".zip",)

    def write(self, tables: Tables, path: Path) -> Exported:
        from wattlaw import __version__

        arrow = {
            name: tables.arrow(name).cast(schema).combine_chunks()
            for name, schema in TABLES.items()
        }
        runs = arrow["runs"].to_pylist()
        names = {collapse_whitespace(replace_invisible(run["study"])) for run in runs}
        studies = ", ".join(sorted(names)) or "no runs"
        counts = Counter(source_of(run["launcher"]) for run in runs if run["status"] == "done")
        sources = ", ".join(f"{plural(n, 'run')} {name}" for name, n in sorted(counts.items()))
        readme = files("wattlaw.exporting").joinpath("bundle_readme.md").read_text(encoding="utf-8")
        texts = {
            **tables.documents,
            "store.json": CONTENT.encode(),
            "columns.csv": files("wattlaw.store").joinpath("columns.csv").read_bytes(),
            "README.md": readme.format(
                studies=studies,
                sources=sources or "no runs",
                sizes="\n".join(f"| `{name}` | {len(table):,} |" for name, table in arrow.items()),
                version=__version__,
                columns=columns_in_markdown(),
            ).encode(),
        }
        with replacing(path, durable=False) as temporary, zipfile.ZipFile(temporary, "w") as bundle:
            bundle.writestr(_member("runs/", mode=0o40755), b"")  # which every store has
            for name in sorted(texts):
                bundle.writestr(_member(name), texts[name], zipfile.ZIP_DEFLATED)
            for name, table in arrow.items():
                packed = _member(f"imports/bundle/{name}.parquet", zipfile.ZIP_STORED)
                with bundle.open(packed, "w", force_zip64=True) as member:
                    pq.write_table(table, member, compression="zstd")
                with (
                    bundle.open(_member(f"{name}.csv"), "w", force_zip64=True) as member,
                    io.TextIOWrapper(member, "utf-8", newline="") as text,
                ):
                    write_csv(text, table)
        return Exported((path,), sum(map(len, arrow.values())))


def _member(
    name: str, compression: int = zipfile.ZIP_DEFLATED, *, mode: int = 0o100644
) -> zipfile.ZipInfo:
    member = zipfile.ZipInfo(name, _DATE)
    member.compress_type = compression
    member.external_attr = mode << 16
    return member


def columns_in_markdown() -> str:
    lines: list[str] = []
    for row in describe_columns():
        if f"## {row['table']}" not in lines:
            head = "\n| column | type | unit | meaning |\n|---|---|---|---|"
            lines += ["", f"## {row['table']}", head]
        lines.append(f"| `{row['column']}` | {row['type']} | {row['unit']} | {row['meaning']} |")
    return "\n".join(lines[1:]) + "\n"
