"""Tables made to break a reader: one line says what and where."""

import gzip
from pathlib import Path

import pytest

from wattlaw.cli.main import main


def fit(path: Path, *options: str) -> list[str]:
    return ["fit", str(path), "--x", "n", "--y", "t", *options]


def bring(path: Path, *more: str) -> list[str]:
    mapping = ",".join(["gpus=n,epoch_time_s=t", *more])
    return ["import", str(path), "--map", mapping, "--store", str(path.parent / "store")]


def told(capsys: pytest.CaptureFixture[str], line: list[str]) -> str:
    assert main(line) == 2
    lines = capsys.readouterr().err.splitlines()
    assert "Traceback" not in "".join(lines)
    assert all(one.isprintable() and len(one) < 700 for one in lines)
    return lines[0]


def test_a_table_of_too_many_rows_is_refused(tmp_path, capsys):
    (tmp_path / "t.csv").write_text("n,t\n" + "1,1\n" * 200_001)
    assert "more than 200,000 rows" in told(capsys, bring(tmp_path / "t.csv"))


FILES: dict[str, tuple[bytes, str]] = {
    "zeros.jsonl": (b"\0" * 1000, "not a table"),
    "utf16.csv": ("n,t\n1,2\n".encode("utf-16")[:-1], "not UTF-16-LE text (byte"),
    "latin.csv": ("n,t,é\n1,2,ü\n".encode("latin-1"), "iconv -f WINDOWS-1252 -t UTF-8"),
    "zip.csv": (gzip.compress(b"n,t\n1,2\n"), "not UTF-8 text"),
    "twice.csv": (b"n,t,n\n1,2,3\n", 'column "n" occurs twice'),
    "quote.csv": (b'n,t\n1,"' + (b"x" * 999 + b"\n") * 11_000, "line 10,002: field larger"),
    "line.jsonl": (b'{"n": "' + b"x" * 11_000_000, "line 1 has more than 10,000,000 characters"),
    "wide.csv": (b"a," * 200_000, "more than 100,000 columns"),
    "deep.jsonl": (b"[" * 1_000_000, "line 1: is not JSON"),
    "t.parquet": (b"PAR1" + b"\xff" * 100 + b"PAR1", 'unknown suffix ".parquet"; allowed: .csv'),
}


@pytest.mark.parametrize("name", FILES)
def test_an_invalid_table_gives_a_one_line_error(tmp_path, capsys, name):
    content, why = FILES[name]
    (tmp_path / name).write_bytes(content)
    for line in (fit(tmp_path / name), bring(tmp_path / name)):
        said = told(capsys, line)
        assert str(tmp_path / name) in said or "--map" in said
        assert why in said
