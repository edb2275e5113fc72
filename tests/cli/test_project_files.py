"""Files around the code that must agree with each other."""

import ast
import importlib.util
import re
import tomllib

import yaml

from paths import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_citation_names_the_version_and_the_authors_of_the_package():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == PROJECT["version"]
    assert citation["authors"] == PROJECT["authors"]
    assert citation["license"] == PROJECT["license"]


def test_every_page_is_in_the_navigation_of_the_site():
    pages = re.findall(r": ([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(pages) == sorted(path.name for path in (ROOT / "docs").glob("*.md"))


def test_every_workflow_runs_a_target_of_the_makefile():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for path in (ROOT / ".github" / "workflows").glob("*.yml"):
        called = re.findall(r"make ([\w-]+)", path.read_text())
        assert called, path
        assert set(called) <= targets


def test_every_import_of_a_benchmark_resolves(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    for path in (ROOT / "benchmarks").glob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            else:
                names = [node.module] if isinstance(node, ast.ImportFrom) else []
            missing = [name for name in names if importlib.util.find_spec(name) is None]
            assert not missing, path
