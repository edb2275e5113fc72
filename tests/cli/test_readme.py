"""The README's first answer for a script of the reader, at a small size."""

import ast
import os
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest
import yaml

import paths
from conftest import wattlaw
from wattlaw.analysis.advise.advice import Advice
from wattlaw.api.results import Results

ROOT = paths.ROOT
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMAND = re.compile(r"^ {4}wattlaw ((?:check|run|advise|report) .*?)(?: +#.*)?$", re.MULTILINE)


def block(language: str) -> str:
    (text,) = re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)
    return str(text)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the README's study, smaller, and a script that trains endlessly."""
    path = tmp_path_factory.mktemp("reader")
    scripts = paths.SCRIPTS
    script = (scripts / "ddp.py").read_text(encoding="utf-8")
    shutil.copy(scripts / "own_timer.py", path)
    (path / "train.py").write_text(script.replace("range(args.epochs)", "range(10**6)"))
    study = yaml.safe_load(block("yaml"))
    study["workloads"][0]["dataset_samples"] = 200
    study["sweeps"][0] |= {"gpus": [1, 2], "global_batch": [20]}
    study |= {"measure": study["measure"] | {"steps": 10}, "repeats": 1}
    study["launch"] |= {"threads_per_worker": 1, "max_parallel": 2}
    (path / "study.yaml").write_text(yaml.safe_dump(study))
    return path


def test_the_commands_of_the_first_answer_succeed(folder, monkeypatch):
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    commands = COMMAND.findall(README)
    assert [line.split()[0] for line in commands] == ["check", "run", "advise", "report"]
    for line in commands:
        ran = wattlaw(*shlex.split(line), cwd=folder)
        assert (ran.returncode, ran.stderr) == (0, ""), (line, ran.stdout, ran.stderr)
    assert (folder / "report.html").is_file()
    monkeypatch.chdir(folder)
    code = ast.parse("".join(block("python").partition("results = ")[1:]))
    *statements, last = code.body
    names: dict[str, object] = {"wattlaw": __import__("wattlaw")}
    exec(compile(ast.Module(statements, []), "README.md", "exec"), names)  # noqa: S102
    advice = eval(compile(ast.Expression(last.value), "README.md", "eval"), names)  # noqa: S307
    assert isinstance(advice, Advice)
    assert advice.unit == "epoch"
    assert advice.recommended.epochs.mean == 90
    assert isinstance(names["results"], Results)
    assert set(names["results"].runs["status"]) == {"done", "skipped"}  # skipped: power caps
