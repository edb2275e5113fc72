"""The Python API on a small simulated store, its docstrings' examples and the notebook."""

import ast
import doctest
import importlib
import inspect
import json
import pkgutil
import runpy
import sys
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import altair as alt
import pandas as pd
import pytest

import wattlaw
import wattlaw.api
from conftest import python, study_of
from made_stores import with_command, write_store
from made_studies import MIT, mit
from made_tables import study
from wattlaw.api.store_reports import EXPORTS
from wattlaw.cli.main import main
from wattlaw.common import progress
from wattlaw.common.errors import BadInput, Refused, WattlawError
from wattlaw.report.topics import advice_text as text
from wattlaw.running import tracker

STUDY = """
name: example
workloads:
  - name: resnet50
sweeps:
  - {gpus: [1, 2, 4, 8], global_batch: [256]}
  - {gpus: [4], global_batch: [256], power_limit_w: [150, 200]}
repeats: 3
measure: {epochs: 3, warmup_epochs: 1}
launch: {kind: simulated, simulation: {hardware: mit-v100}}
"""
NOTEBOOK = Path("examples/notebook.ipynb")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("api")
    (path / "study.yaml").write_text(STUDY)
    outcome = wattlaw.run(path / "study.yaml", path / "results")
    assert (outcome.done, outcome.failed, outcome.left) == (18, 0, 0)
    return path


@pytest.fixture(scope="module")
def results(folder):
    return wattlaw.open(str(folder / "results"))


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Give the results of a study of two workloads that counts as measured."""
    models = {name: MIT[name] for name in ("dimenet", "resnet50")}
    made = mit(models=models, counts=(2, 8, 32), repeats=2, clocks=False)
    store = write_store(tmp_path_factory.mktemp("measured"), made.runs, made.epochs)
    return wattlaw.open(store.path)


def test_a_study_shows_its_runs_and_what_a_store_has_of_them(folder, tmp_path):
    study = wattlaw.load_study(folder / "study.yaml")
    frame = study.to_frame()
    assert (study.name, study.launcher, len(study)) == ("example", "simulated", 18)
    assert sorted(frame["gpus"].unique()) == [1, 2, 4, 8]
    assert set(frame["power_limit_w"].dropna()) == {150.0, 200.0}
    assert study.to_dict()["repeats"] == 3
    assert study.preview(folder / "results").counts == {"done": 18}
    new = study.preview(tmp_path)
    assert new.counts == {"planned": 18}
    assert set(new.to_frame()["status"]) == {"planned"}
    assert new.to_dict()["gpu_hours"]["unknown_runs"] == 18


def test_a_second_run_has_nothing_to_do_and_progress_gets_lines(folder, tmp_path):
    lines: list[str] = []
    text = (folder / "study.yaml").read_text()
    (tmp_path / "study.yaml").write_text(
        text.replace("simulation: {", "simulation: {fail_share: 1, ")
    )
    outcome = wattlaw.run(tmp_path / "study.yaml", tmp_path / "store", progress=lines.append)
    assert outcome.failed == 18
    assert len(lines) == 18
    assert all(line.startswith("failed: resnet50 on ") for line in lines)
    again = wattlaw.run(folder / "study.yaml", folder / "results", progress=lines.append)
    assert (again.done, len(lines)) == (18, 18)
    assert again.results.workloads == ("resnet50",)
    assert again.to_frame()["done"].tolist() == [18]


def test_a_run_that_ends_names_the_command_that_answers(folder, capsys):
    assert main(["run", str(folder / "study.yaml"), "--store", str(folder / "results")]) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    name, _, command = line.partition(": ")
    assert name == "Next"
    assert main(command.split()[1:]) == 0
    assert "Run resnet50 on" in capsys.readouterr().out


def test_a_script_without_a_main_guard_runs_a_simulated_study(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        f"import wattlaw\nopen('study.yaml', 'w').write({STUDY!r})\n"
        "print(wattlaw.run('study.yaml', 'results').done)\n"
    )
    ran = python(script, cwd=tmp_path)
    assert (ran.stdout, ran.stderr) == ("18\n", "")


def test_the_tables_of_a_store_are_frames(results):
    assert len(results.runs) == len(results.metrics) == 18
    assert len(results.settings) == 6
    assert set(results.settings["n"]) == {3}
    assert set(results.settings) < set(results.table("settings"))
    assert {"power_limit_w", "energy_j_low", "n"} <= set(results.settings)
    assert len(results) == 18
    assert set(results.epochs["phase"]) == {"train", "evaluate"}
    of_run = results.statistics[results.statistics["part"] == "run"]
    assert sorted(of_run["run_id"]) == sorted(results.runs["run_id"])
    first, second = results.runs["run_id"][:2]
    assert set(results.table("telemetry", first)["run_id"]) == {first}
    assert set(results.table("telemetry", [first, second])["run_id"]) == {first, second}
    assert set(results.table("epochs", first)["run_id"]) == {first}
    assert len(results.telemetry) > 18
    assert results.is_simulated
    assert results.to_dict()["runs"][0]["runs"] == 18


def test_a_notebook_shows_the_progress_of_long_calls(folder, tmp_path, monkeypatch):
    shown: list[str] = []
    cell = SimpleNamespace(update=lambda output, *, raw: shown.append(output["text/plain"]))

    def display(output, *, raw, display_id):
        cell.update(output, raw=raw)
        return cell

    shell = SimpleNamespace(kernel=True)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    monkeypatch.setattr(progress, "SHOWN_AFTER_S", 0.0)
    wattlaw.run(folder / "study.yaml", tmp_path)
    assert sum(line.startswith("done: resnet50 on ") for line in shown) == 18
    shown.clear()
    assert list(progress.track("ab", "Reading", 2)) == ["a", "b"]
    assert shown[0] == "Reading: 0 of 2"
    assert shown[-1] == ""  # the line is removed


def test_several_stores_are_one_set_of_results(folder, measured):
    both = wattlaw.open(folder / "results", *measured.paths)
    assert both.workloads == ("dimenet", "resnet50")
    assert len(both.runs) == 18 + len(measured.runs)
    assert not both.is_simulated
    assert len(both.telemetry) == len(wattlaw.open(folder / "results").telemetry)
    assert wattlaw.open([folder / "results", *measured.paths]) == both


def test_a_table_is_fitted_from_a_frame_or_a_file(tmp_path):
    table = pd.DataFrame({"n": [1, 2, 4, 8, 16], "t": [8.0, 4.0, 2.0, 1.0, None]})
    table.to_csv(tmp_path / "t.csv", index=False)
    for source in (table, tmp_path / "t.csv", str(tmp_path / "t.csv")):
        fits = wattlaw.fit(source, x="n", y="t")
        assert fits.rows[0].law.beta == pytest.approx(1.0)
        assert fits.left_out == 1
        assert json.dumps(fits.to_dict())
    with pytest.raises(BadInput, match="no column 'cores'"):
        wattlaw.fit(table, x="cores", y="t")


def test_advice_needs_no_workload_where_there_is_a_single_one(results, measured):
    advice = results.advise(deadline="20h", max_slowdown=0.05)
    assert advice == results.advise("resnet50", deadline=timedelta(hours=20), max_slowdown="5%")
    assert advice.simulated
    for ask in (measured.advise, measured.predict, measured.proposal):
        with pytest.raises(BadInput, match=r"workload.*dimenet, resnet50.*--workload"):
            ask()
    assert measured.advise("dimenet").workload == "dimenet"
    with pytest.raises(Refused, match=r"no done runs of workload 'vgg16'.*resnet50.*--workload"):
        results.advise("vgg16")


@pytest.fixture(scope="module")
def with_a_command(tmp_path_factory):
    """Give the path of a store with a study, and with runs of a command that is in no study."""
    store = with_command(tmp_path_factory.mktemp("command") / "store", *study(counts=(1, 2)))
    store.keep_study("s", json.dumps(study_of()))
    return store.path


@pytest.mark.usefixtures("some")
def test_the_workload_of_the_study_is_answered_for_where_others_were_measured(
    with_a_command, tmp_path, capsys
):
    opened = wattlaw.open(with_a_command)
    assert opened.workloads == ("command", "digits-cnn")
    assert (opened.asked_workloads, opened.other_workloads) == (("digits-cnn",), ("command",))
    assert opened.advise() == opened.advise("digits-cnn")
    assert opened.advise("command").workload == "command"
    assert [advice.workload for advice in opened._findings().advice] == ["digits-cnn"]
    page = tmp_path / "page.html"
    for command in ("advise", "predict", "proposal", "report"):
        files = ["-o", str(page)] if command in ("proposal", "report") else []
        assert main([command, str(with_a_command), *files]) == 0, command
        told = capsys.readouterr()
        assert all(word in told.err for word in ("digits-cnn", "command", "--workload")), command
        assert told.err.count("\n") == 1
        assert f"; wattlaw advise {with_a_command} --workload NAME answers" in told.err
        if command != "report":
            assert main([command, str(with_a_command), *files, "-w", "command"]) == 0, command
            assert "--workload" not in capsys.readouterr().err
    text = page.read_text(encoding="utf-8")
    assert f"wattlaw advise {with_a_command} --workload NAME" in text


def test_a_study_whose_runs_all_failed_is_not_answered_by_another_workload(
    with_a_command, tmp_path
):
    runs, epochs = (wattlaw.open(with_a_command).table(name) for name in ("runs", "epochs"))
    is_studied = runs["workload"] != "command"
    store = write_store(
        tmp_path, runs.assign(status=runs["status"].mask(is_studied, "failed")), epochs
    )
    store.keep_study(runs["study"][is_studied].iloc[0], json.dumps(study_of()))
    for ask in (wattlaw.open(tmp_path).advise, wattlaw.open(tmp_path).predict):
        with pytest.raises(Refused, match=r"'digits-cnn'.*runs of: command; .*--workload"):
            ask()


def test_advice_is_a_table_a_text_and_json(measured):
    advice = measured.advise("dimenet", max_slowdown="10%", price="0.3 EUR", grid=400)
    frame = advice.to_frame()
    assert frame["recommended"].sum() == 1
    best = frame[frame["recommended"]].iloc[0]
    option = advice.recommended
    assert best["gpus"] == option.gpus
    assert best["train_time_s"] == option.train_time_s.mean
    assert [best["train_time_s_low"], best["train_time_s_high"]] == option.train_time_s.interval
    assert best["cost"] == pytest.approx(best["train_energy_j"] / 3.6e6 * 0.3)
    assert str(advice) == "\n".join([*text.summary(advice), *text.details(advice)])
    assert json.loads(json.dumps(advice.to_dict()))["workload"] == "dimenet"
    none = measured.advise("dimenet", deadline=1)
    assert none.recommended is None
    assert not none.to_frame()["recommended"].any()
    assert str(none).startswith("Nothing to recommend for dimenet")


def test_a_plot_is_the_figure_of_the_report(results):
    chart = results.plot("energy_speed")
    assert isinstance(chart, alt.ConcatChart)
    spec = chart.to_dict()
    assert spec["title"]["text"] == "Energy against speed"
    assert "Simulated values: nothing was measured here." in spec["title"]["subtitle"]
    assert "energy_speed" in results.figures
    with pytest.raises(BadInput, match='figure: given "energy_sped"; allowed: pareto, '):
        results.plot("energy_sped")
    with pytest.raises(Refused, match="figure effects_by_clock: these runs do not have"):
        results.plot("effects_by_clock")


@pytest.mark.parametrize("table", EXPORTS)
def test_an_exported_table_has_the_rows_of_the_frame(results, table, tmp_path):
    written = results.export(table, tmp_path / "t.parquet")
    (path,) = written.files
    frame = pd.read_parquet(path)
    assert len(frame) == written.rows > 0
    if table not in ("fits", "telemetry"):
        assert list(frame) == list(results.table(table))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda r: wattlaw.open(), "stores: given none"),
        (lambda r: wattlaw.open(3), "stores: given 3; allowed: a path"),
        (lambda r: wattlaw.run(3), "study: given 3; allowed: a path"),
        (lambda r: wattlaw.import_files([]), "files: given 0 files"),
        (lambda r: r.predict(gpus=0), "gpus: given 0; allowed: whole numbers from 1"),
        (lambda r: r.predict(gpus=["x"]), 'gpus: given ["x"]'),
        (lambda r: r.predict(local_batch=1.5), "local_batch: given 1.5"),
        (lambda r: r.predict(gpus_per_node=0), "gpus_per_node: given 0"),
        (lambda r: r.predict(power_limit_w="x"), 'power_limit_w: given "x"'),
        (lambda r: r.predict(seed=-1), "seed: given -1"),
        (lambda r: r.compare(3), "other: given 3; allowed: a path"),
        (lambda r: r.plot("speedup", reference=0), "reference: given 0"),
        (lambda r: r.advise(target="x"), "target: given"),
        (lambda r: r.table("run"), 'table: given "run"; allowed: runs, '),
        (lambda r: r.table("telemetry", "nowhere"), 'run_id: given "nowhere"'),
        (lambda r: r.table("settings", "nowhere"), "run_id: "),
        (lambda r: wattlaw.open("nowhere"), "nowhere: "),
        (lambda r: r.export("all", "t.csv"), 'what: given "all"; allowed: runs, '),
        (lambda r: r.export("runs", "t.xlsx"), "unknown ending '.xlsx'"),
        (lambda r: r.advise(deadline=-1), "deadline: given -1"),
        (lambda r: r.advise(grid="atlantis"), "grid: no grid intensity of 'atlantis'"),
        (lambda r: r.report("t.html", template="none"), "none"),
        (lambda r: r.fit(y="energyj"), "y: no column 'energyj' (did you mean 'energy_j'?)"),
        (lambda r: r.fit(by="cores"), "by: no column 'cores'"),
    ],
)
def test_an_error_is_a_line_of_our_own(results, wrong, message):
    with pytest.raises(WattlawError) as raised:
        wrong(results)
    assert message in str(raised.value)
    assert len(str(raised.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("call", "nearest"),
    [
        (lambda r: r.advise(max_gpu=4), "max_gpus"),
        (lambda r: r.advise(any_batches=True), "any_batch"),
        (lambda r: r.report("t.html", figure="laws"), "figures"),
    ],
)
def test_an_unknown_argument_names_the_nearest_and_all_others(results, call, nearest):
    with pytest.raises(TypeError, match=f"did you mean '{nearest}'") as raised:
        call(results)
    method = results.advise if "any_batch" in str(raised.value) else results.report
    listed = str(raised.value).partition("allowed: ")[2].split(", ")
    assert listed == [*inspect.signature(method).parameters]


@pytest.mark.usefixtures("some")
def test_results_show_themselves_in_a_notebook_with_text_from_data_escaped(results, tmp_path):
    page = results.report(tmp_path / "page.html")
    shown = [results, results.fit(), results.advise(), page]
    for one in shown:
        assert "<table" in one._repr_html_()
    table = pd.DataFrame({"n": [1, 2, 4], "t": [4.0, 2, 1], "who": "<script>alert()</script>"})
    html = wattlaw.fit(table, "n", "t", by="who")._repr_html_()
    assert "<script>" not in html
    assert "&lt;script&gt;" in html


def test_every_public_name_is_imported_when_it_is_used():
    code = "import sys, wattlaw; print(sorted(m for m in sys.modules if m.startswith('wattlaw')))"
    assert python("-c", code).stdout == "['wattlaw']\n"
    assert dir(wattlaw) == sorted(wattlaw.__all__)
    for name in wattlaw.__all__:
        assert getattr(wattlaw, name)
    assert inspect.isfunction(wattlaw.run)  # no package of this name hides it
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = wattlaw.nothing


@pytest.mark.usefixtures("some")
def test_the_examples_of_the_docstrings_work(folder, monkeypatch):
    monkeypatch.chdir(folder)
    modules = [
        importlib.import_module(f"wattlaw.api.{one.name}")
        for one in pkgutil.iter_modules(wattlaw.api.__path__)
    ]
    tried = 0
    for module in [*modules, tracker]:
        outcome = doctest.testmod(module, extraglobs={"wattlaw": wattlaw})
        assert outcome.failed == 0, module.__name__
        tried += outcome.attempted
    assert tried > 20


def test_the_code_of_the_gallery_draws_its_pictures(tmp_path, monkeypatch):
    page = runpy.run_path(str(Path("tools/gallery.py").resolve()))
    images = Path("docs").resolve()
    monkeypatch.chdir(tmp_path)
    drawn = {path: chart.to_dict() for path, chart in page["pictures"]()}
    assert len(drawn) == 10
    assert all((images / path).is_file() for path in drawn)
    assert all(
        "imulated" in json.dumps(chart["title"]) for chart in drawn.values() if "title" in chart
    )


def test_the_cells_of_the_notebook_run_and_show_something(tmp_path, monkeypatch):
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    assert "simulated" in "".join(cells[0]["source"])
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    shown = []
    for cell in cells:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            code = ast.parse("".join(cell["source"]))
            last = code.body.pop() if isinstance(code.body[-1], ast.Expr) else None
            exec(compile(code, "notebook", "exec"), names)  # noqa: S102
            if last is not None:
                expression = compile(ast.Expression(last.value), "notebook", "eval")
                value = eval(expression, names)  # noqa: S307
                shown.append(type(value).__name__)
    assert shown == [
        "NoneType", "DataFrame", "RunOutcome", "Results", "DataFrame", "Fits", "Advice",
        "DataFrame", "ConcatChart", "Claims", "Report", "TrackResult",
    ]  # fmt: skip
    assert names["outcome"].done == 21
    assert (tmp_path / "notebook-output" / "report.html").is_file()


def test_predictions_place_workers_on_the_nodes_of_the_study(tmp_path):
    store = write_store(tmp_path, *study(counts=(1, 2)))
    asked = study_of(name="s", sweeps=[{"gpus": [1, 2], "global_batch": [64]}])
    store.keep_study("s", json.dumps(asked))
    results = wattlaw.open(store.path)
    (row,) = results.predict(gpus=4, global_batch=64)
    assert row.setting.nodes == 1
    (row,) = results.predict(gpus=4, global_batch=64, gpus_per_node=2)
    assert row.setting.nodes == 2
    # By default, a study of one machine stays there; another launcher has more of them.
    assert {row.setting.gpus for row in results.predict()} == {1, 2, 4}
    assert "for two: --gpus 8 --local-batch" in str(results.predict())
    launch = {"kind": "slurm", "gpus_per_node": 4}
    store.keep_study("s", json.dumps(asked | {"launch": launch}))
    predicted = wattlaw.open(store.path).predict()
    assert {(row.setting.gpus, row.setting.nodes) for row in predicted} >= {(4, 1), (8, 2)}
    assert "--gpus" not in str(predicted)
