"""The README's and the tutorial's way from a script to an answer, as it stands."""

import ast
import html
import os
import re
import shlex
import sys
from pathlib import Path

import pytest
import yaml

import paths
from conftest import wattlaw
from wattlaw.analysis.advise.advice import Advice
from wattlaw.api.results import Results

README = (paths.ROOT / "README.md").read_text(encoding="utf-8")
TUTORIAL = (paths.ROOT / "docs" / "index.md").read_text(encoding="utf-8").split("## Tutorial")[1]
COMMAND = re.compile(r"^ {4}wattlaw (.*?)(?: +#.*)?$", re.MULTILINE)
#: What the machine decides: how long a run of so many steps takes, and how many workers fit.
MEASURED = ("measure", "sweeps", "launch", "decide")


def blocks(language: str, text: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """Run the commands, with few settings of the study; return the folder and what they print."""
    folder, outputs = tmp_path_factory.mktemp("reader"), {}
    study, all_settings = folder / "study.yaml", "[1, 2], global_batch: [32, 64, 128]}"
    fewer = "[1], global_batch: [32, 128]}\n  - {gpus: [2], global_batch: [128]}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
        for line in COMMAND.findall(TUTORIAL):
            ran = wattlaw(*shlex.split(line), cwd=folder, timeout=360)
            assert ran.returncode == 0, (line, ran.stdout, ran.stderr)
            outputs[line.split()[0]] = ran.stdout
            if line.startswith("init "):
                outputs["study"] = text = study.read_text()
                study.write_text(text.replace(all_settings, fewer).replace(": 2  #", ": 1  #"))
    return folder, outputs


def test_the_readme_has_the_commands_of_the_tutorial():
    assert COMMAND.findall(README) == COMMAND.findall(TUTORIAL)


def test_the_tutorial_shows_the_script_that_it_copies(answers):
    folder, _ = answers
    assert (folder / "train.py").read_text(encoding="utf-8") == blocks("python", TUTORIAL)[0]


def test_init_writes_the_study_that_the_tutorial_shows(answers):
    _, outputs = answers
    shown, written = map(yaml.safe_load, (blocks("yaml", TUTORIAL)[0], outputs["study"]))
    assert written.keys() == shown.keys()
    for name in shown.keys() - {*MEASURED}:
        assert written[name] == shown[name]
    assert written["sweeps"][0]["global_batch"] == shown["sweeps"][0]["global_batch"]
    assert written["decide"].keys() == shown["decide"].keys()
    output, expected = outputs["init"], blocks("text", TUTORIAL)[0]
    seen = re.compile(
        r"Seen: (\d worker, global batch \d+), [\d.e-]+ s per step "
        r"with 1 thread \(OMP_NUM_THREADS=1\), (\w+)"
    )
    assert seen.findall(output) == seen.findall(expected) == [("1 worker, global batch 32", "fp32")]
    assert output.split("Next:")[1] == expected.split("Next:")[1]


def test_the_answer_has_the_parts_that_the_tutorial_shows(answers):
    _, outputs = answers
    # Of several workers, the second figure is their time, and a line below says the saving.
    part = re.compile(
        r"^(?:(Time of |Sure|What changes|Rests on)|Saving|Worker time)", re.MULTILINE
    )
    assert part.findall(outputs["advise"]) == part.findall(blocks("text", TUTORIAL)[1])


def test_python_gives_the_same_answer(answers, monkeypatch):
    folder, outputs = answers
    report = (folder / "report.html").read_text(encoding="utf-8")
    report = re.sub('<span class="word">(.*?)</span>', r"\1", report)
    monkeypatch.chdir(folder)
    (code,) = blocks("python", README)
    *statements, last = ast.parse(code).body
    names: dict[str, object] = {}
    exec(compile(ast.Module(statements, []), "README.md", "exec"), names)  # noqa: S102
    assert isinstance(last, ast.Expr)
    advice = eval(compile(ast.Expression(last.value), "README.md", "eval"), names)  # noqa: S307
    assert isinstance(advice, Advice)
    assert advice.unit == "epoch"
    assert (advice.goal, advice.decision.workload) == ("time", advice.workload)  # as the study asks
    assert advice.recommended.label in outputs["advise"]
    assert f"\n  {advice.command}\n" in outputs["advise"]
    assert advice.command.endswith("--epochs 100")
    assert f"<code>{html.escape(advice.command)}</code>" in report
    assert advice.recommended.epochs.mean == 100
    assert isinstance(names["results"], Results)
