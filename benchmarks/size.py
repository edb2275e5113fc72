"""How large the code is: ``python benchmarks/size.py [REVISION...]``, a table for each revision.

Of each package: files, lines, functions, private functions that are used once in the package (and
how many of these have at most 8 lines), docstrings, and ``fmt: skip``. Then lines of tests and
words of docs. Without a revision, the files of the working tree are counted.
"""

import ast
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SHORT = 8
COLUMNS = ("files", "lines", "functions", "used once", "of these short", "docstrings", "fmt: skip")


def sources(revision: str | None) -> Iterator[tuple[str, str]]:
    """Yield path and text of the Python files and pages of a revision."""
    git = ["git", "-C", str(ROOT)]
    listed = ["ls-tree", "-r", "--name-only", revision] if revision else ["ls-files"]
    names = subprocess.run([*git, *listed], capture_output=True, text=True, check=True).stdout
    for name in names.splitlines():
        if not name.endswith((".py", ".md")) or not name.startswith(("src", "tests", "docs")):
            continue
        if revision is None:
            if (ROOT / name).exists():
                yield name, (ROOT / name).read_text(encoding="utf-8")
            continue
        shown = subprocess.run(
            [*git, "show", f"{revision}:{name}"], capture_output=True, text=True, check=True
        )
        yield name, shown.stdout


def count(texts: list[str]) -> Counter[str]:
    """Count what a package has; a name is used once if it is defined and read once."""
    found = Counter[str](files=len(texts), lines=sum(len(text.splitlines()) for text in texts))
    lengths, names = dict[str, int](), Counter[str]()
    for text in texts:
        found["fmt: skip"] += text.count("# fmt: skip")
        names.update(re.findall(r"\w+", text))
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found["functions"] += 1
                if node.name.startswith("_") and not node.name.endswith("__"):
                    lengths[node.name] = (node.end_lineno or node.lineno) - node.lineno + 1
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                found["docstrings"] += ast.get_docstring(node) is not None
    once = [length for name, length in lengths.items() if names[name] == 2]
    found["used once"] = len(once)
    found["of these short"] = sum(length <= SHORT for length in once)
    return found


def package(name: str) -> str:
    """Return the package of a file: two levels of the core, one of an add-on."""
    parts = name.split("/")[1:-1]
    return "/".join(parts[:2]) if parts[0] == "wattlaw" else parts[0]


def main() -> None:
    """Print the tables."""
    for revision in sys.argv[1:] or [None]:
        packages, tests, words = defaultdict[str, list[str]](list), list[str](), 0
        for name, text in sources(revision):
            if name.endswith(".md"):
                words += len(text.split()) if name.startswith("docs") else 0
            elif name.startswith("tests"):
                tests.append(text)
            else:
                packages[package(name)].append(text)
        core = [text for name, texts in packages.items() for text in texts if "_" not in name[:8]]
        rest = [text for name, texts in packages.items() for text in texts if "_" in name[:8]]
        rows = {name: count(texts) for name, texts in sorted(packages.items())}
        rows |= {"core": count(core), "add-ons": count(rest), "tests": count(tests)}
        print(f"\n{revision or 'working tree'}: docs {words:,} words")
        print(f"{'package':24}" + "".join(f"{name:>15}" for name in COLUMNS))
        for name, row in rows.items():
            print(f"{name:24}" + "".join(f"{row[column]:15,}" for column in COLUMNS))


if __name__ == "__main__":
    main()
