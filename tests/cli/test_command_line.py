"""The command line as a user meets it: real processes, real files."""

import json
import os
import subprocess
import sys

import pytest
import typer

from conftest import wattlaw
from made_stores import write_store
from made_tables import frames, run_row, study, window_row
from wattlaw.cli.app import COMMANDS, app
from wattlaw.cli.main import main
from wattlaw.workloads import catalogue


def loaded_by(code: str) -> set[str]:
    line = [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules)"]
    return set(subprocess.run(line, capture_output=True, text=True, check=True).stdout.split())


def test_help_names_every_command_and_imports_neither_torch_nor_pandas():
    found = wattlaw("--help")
    assert found.returncode == 0
    groups = {}
    for line in found.stdout.splitlines():
        if line.endswith(":"):
            named = groups.setdefault(line[:-1], [])
        elif line[:2] == "  " and line[2] != " ":
            named = groups[[*groups][-1]] if groups else []
            named.append(line.split()[0])
    assert [*groups][1:] == ["Measure", "Study", "Answers", "Data"]  # after the options
    assert sorted(name for names in [*groups.values()][1:] for name in names) == sorted(COMMANDS)
    assert groups["Answers"][:2] == ["advise", "report"]
    modules = loaded_by("from wattlaw.cli.main import main; main(['--help'])")
    assert not {"torch", "pandas", "pyarrow", "numpy", "altair", "yaml"} & modules
    assert not {"torch", "pandas"} & loaded_by("import wattlaw")


def test_advice_imports_no_package_that_only_other_commands_need(tmp_path):
    """The store has series, batches with a quality, and repeats, so that every part has work."""
    store = tmp_path / "store"
    write_store(store, *study((1, 2)))
    modules = loaded_by(f"from wattlaw.cli.main import main; main(['advise', {str(store)!r}])")
    assert "wattlaw.analysis.laws.batch_effects" in modules
    assert not {"scipy.stats", "scipy.optimize", "statsmodels", "altair"} & modules


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_has_the_first_sentence_of_each_help(name):
    command = typer.main.get_group(app).get_command(None, name)
    assert command.help.partition("\n")[0] == COMMANDS[name].help


@pytest.mark.parametrize(
    "arguments",
    [("nonsense",), ("run",), ("run", "x.yaml", "--nonsense"), ("status", "/no/such/store"),
     ("fit", "/no/such/store"), ("check", "/no/such/file"), ("workloads", "nonsense")],
)  # fmt: skip
def test_a_usage_error_is_one_line_with_exit_code_two(arguments, capsys):
    assert main(list(arguments)) == 2
    shown = capsys.readouterr()
    assert len(shown.err.splitlines()) == 1
    assert shown.err.startswith("wattlaw: ")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("advise --obective time x", "(did you mean --minimize?)"),
        ("advise --dedline 5h x", "(did you mean --deadline?)"),
        ("init --out x y", "--output"),
        ("advise --zzz x", "no such option --zzz; see wattlaw advise --help"),
        ("run --launch slrum study.yaml", "'slurm'"),
        ("advise --minimize enrgy store", "'energy'"),
        ("next empty", "wattlaw run STUDY.yaml --store empty"),
    ],
)
def test_a_mistake_is_answered_with_the_nearest_name_or_the_next_command(
    line, said, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    write_store(tmp_path / "store", *frames([run_row("a")], [window_row("a", 0)]))
    (tmp_path / "study.yaml").write_text(
        "{name: a, workloads: [{name: digits-cnn}], sweeps: [{gpus: [1], local_batch: [8]}]}"
    )
    assert main(line.split()) == 2
    assert said in capsys.readouterr().err


def test_status_has_counts_and_reasons(tmp_path, capsys):
    path = tmp_path / "st#re [b]:c"  # neither a pattern, nor a URL, nor markup
    skipped = run_row("b", status="skipped", reason="needs 99 workers")
    write_store(path, *frames([run_row("a"), skipped], []))
    assert main(["status", str(path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["counts"] == {"done": 1, "skipped": 1}
    assert told["not_done"][0]["reason"] == "needs 99 workers"


def test_a_workload_is_shown_with_every_option_its_default_and_what_is_allowed(capsys):
    assert main(["workloads", "show", "resnet50"]) == 0
    shown = "".join(capsys.readouterr().out.replace("│", " ").split())
    fields = catalogue.entry("resnet50").options.model_fields
    assert len(fields) > 3
    for name, field in fields.items():
        assert name + json.dumps(field.default).replace(" ", "") in shown
    assert main(["workloads", "show", "resnet"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "'resnet'; allowed: bert-base, " in line


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["report", "{store}", "--figures", ""], "argument 4"),
        (["report", "{store}", "--figures="], "--figures"),
        (["report", "{store}", "-o", ""], "argument 4"),
        (["run", "study.yaml", "--store", ""], "argument 4"),
        (["measure", "--store", "", "--", "true", ""], "argument 3"),
    ],
)
def test_an_empty_path_is_refused_and_nothing_is_written(
    arguments, names, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    assert main([argument.replace("{store}", "store") for argument in arguments]) == 2
    captured = capsys.readouterr()
    assert f"{names} is empty" in captured.err
    assert captured.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_measured_command_may_have_empty_arguments(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    assert main(["measure", "--", "printf", "%s|", "a", ""]) == 0
    assert capfd.readouterr().out == "a||"
    assert main(["measure", "printf", "%s|", "", "b"]) == 0


def test_a_broken_add_on_breaks_its_own_command_only(tmp_path):
    info = tmp_path / "bad-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: bad\nVersion: 1\n")
    points = "[wattlaw.commands]\nbroken = nothing_here:X\nrun = nothing_here:Y\n"
    (info / "entry_points.txt").write_text(points)

    def code(*words):
        path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
        return wattlaw(*words, env=os.environ | {"PYTHONPATH": path}).returncode

    assert code("--help") == 0
    assert code("run", "--help") == 0  # the core's, not that of the add-on
    assert code("broken") == 3
