"""What a GPU must show, on a borrowed machine with one: ``make gpu-acceptance``, ten minutes.

The machine needs Python 3.12 with torch and CUDA, but neither network nor package registry. What it
lacks comes from a folder of wheels, which ``make gpu-wheels`` fills on another machine:

    python benchmarks/gpu_acceptance.py [--wheels build/gpu-wheels] [--output build/gpu-acceptance]

wattlaw is that of this source tree. Each part of ``gpu_parts.py`` is a process with a time limit of
its own; ``results.json`` always has all that was measured. Parts can be spread over several calls:
the file keeps those of earlier calls. No setting of the GPU is changed.
``--rehearse`` makes the same calls on a CPU with the fake driver of the tests, and says so in its
results. ``gpu_page.py`` makes the page of a results file.

This module needs the standard library only, until the wheels are installed.
"""

import argparse
import datetime
import importlib.util
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
#: Seconds of each part on an H100, in order; a later part may need the results of an earlier one.
LIMITS_S = {
    "facts": 15, "energy": 95, "overhead": 45, "throughput": 200, "scripts": 65, "study": 130,
    "predict": 15, "unchanged": 5,
}  # fmt: skip
LIMIT_S = 570.0
#: A rehearsal has fewer and slower cores, which others use too.
REHEARSAL_TIMES = 8
_GRACE_S = 5.0


def install(wheels: Path, site: Path) -> str:
    """Install the wheels into a folder, without any index; return what was done.

    The source tree is described there as an installed package, for its entry points.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    info = site / f"wattlaw-{project['version']}.dist-info"
    info.mkdir(parents=True)
    needs = "".join(f"Requires-Dist: {need}\n" for need in project["dependencies"])
    head = f"Metadata-Version: 2.1\nName: wattlaw\nVersion: {project['version']}\n"
    (info / "METADATA").write_text(head + needs, encoding="utf-8")
    lines = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    # physicsnemo imports s3fs, which has 15 MB with its needs, and uses it for remote files only.
    if importlib.util.find_spec("s3fs") is None:
        (site / "s3fs.py").write_text("", encoding="utf-8")
    files = sorted(map(str, wheels.glob("*.whl")))
    if not files:
        return f"no wheels in {wheels}; the packages of this Python are used"
    if sys.version_info[:2] != (3, 12):
        return f"the wheels are for Python 3.12, this is {platform.python_version()}: not installed"
    line = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    line += ["--no-compile", "--no-cache-dir", "--disable-pip-version-check", "--target", str(site)]
    done = subprocess.run([*line, *files], capture_output=True, text=True, check=False, timeout=120)
    if done.returncode:
        return f"pip failed: {' '.join(done.stderr[-600:].split())}"
    return f"{len(files)} wheels installed"


def environment_of(site: Path, folder: Path, *, rehearse: bool) -> dict[str, str]:
    """Return the environment of the parts; in a rehearsal with a board of the fake driver."""
    paths = [site, ROOT / "src", HERE]
    variables = dict(os.environ) | {"WATTLAW_LOCKS": str(folder)}
    variables |= {"XDG_STATE_HOME": str(folder / "state"), "COLUMNS": "160"}
    if rehearse:
        paths.append(ROOT / "tests" / "support")
        sys.path.insert(0, str(ROOT / "tests" / "support"))
        from fake_nvml import FakeGpus

        name, gib = "NVIDIA H100 80GB HBM3 (fake)", 2**30
        boards = FakeGpus.create(
            folder / "boards", 1, name=name, capability=90, buffers=1, low_w=80.0,
            high_w=450.0, limit_max_mw=700_000, limit_default_mw=700_000, limit_mw=700_000,
            memory_total=80 * gib,
        )  # fmt: skip
        variables |= boards.environment() | {"CUDA_VISIBLE_DEVICES": boards.ids[0]}
        variables["OMP_NUM_THREADS"] = "1"
    else:
        first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
        variables["CUDA_VISIBLE_DEVICES"] = first or "0"
    old = os.environ.get("PYTHONPATH")
    variables["PYTHONPATH"] = os.pathsep.join([*map(str, paths), *([old] if old else [])])
    return variables


class Acceptance:
    """The program: its results file, and the parts that it runs one after the other."""

    def __init__(self, output: Path, head: Mapping[str, object], names: list[str]) -> None:
        output.mkdir(parents=True, exist_ok=True)
        self.results, self.log = output / "results.json", output / "log.txt"
        self.log.unlink(missing_ok=True)
        rows = dict[str, object]()
        if self.results.exists():
            earlier = json.loads(self.results.read_text(encoding="utf-8"))
            if earlier["sizes"] == head["sizes"]:
                rows = earlier["parts"]
        rows |= {name: {"status": "not started", "result": {}} for name in names}
        self._write({**head, "parts": rows})

    def _write(self, content: Mapping[str, object]) -> None:
        temporary = self.results.with_name(".results.json")
        temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        temporary.replace(self.results)

    def note(self, name: str, **values: object) -> None:
        """Change what the results file says about a part."""
        content = json.loads(self.results.read_text(encoding="utf-8"))
        content["parts"][name] |= values
        self._write(content)

    def run(self, name: str, limit_s: float, line: list[str], variables: dict[str, str]) -> str:
        """Run a part within its limit; end all processes that it leaves behind."""
        from wattlaw.common import processes

        begun_s = time.monotonic()
        self.note(name, status="unfinished", limit_s=round(limit_s, 1))
        with self.log.open("a", encoding="utf-8") as log:
            log.write(f"\n== {name}\n")
            log.flush()
            process = subprocess.Popen(
                line, env=variables, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
            try:
                code: int | None = process.wait(limit_s)
            except subprocess.TimeoutExpired:
                code = None
            finally:  # also after Ctrl-C and SIGTERM
                processes.terminate(processes.process_tree(os.getpid())[1:], _GRACE_S)
                process.wait()
        status = {None: "unfinished", 0: "done"}.get(code, "failed")
        reason = None if code == 0 else f"its limit of {limit_s:.0f} s was reached"
        if status == "failed":
            text = self.log.read_text(encoding="utf-8", errors="replace")
            reason = f"exit code {code}: {' '.join(text[-800:].split())}"
        seconds = round(time.monotonic() - begun_s, 1)
        self.note(name, status=status, seconds=seconds, reason=reason)
        print(f"{name}: {status}, {seconds:.0f} s{f': {reason}' if reason else ''}", flush=True)
        return status


def main() -> int:
    """Run the parts; return 1 unless all are done."""
    parser = argparse.ArgumentParser(description="Try wattlaw on a machine with one NVIDIA GPU.")
    parser.add_argument("--wheels", type=Path, default=ROOT / "build" / "gpu-wheels")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "gpu-acceptance")
    parser.add_argument("--parts", nargs="+", choices=LIMITS_S, default=list(LIMITS_S))
    parser.add_argument("--limit-s", type=float, help=f"of all parts; default {LIMIT_S:.0f}")
    parser.add_argument("--rehearse", action="store_true", help="on a CPU, with the fake driver")
    parser.add_argument("--short", action="store_true", help="a rehearsal with the smallest sizes")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    begun_s, rehearse = time.monotonic(), options.rehearse or options.short
    times = REHEARSAL_TIMES if rehearse else 1
    end_s = begun_s + (options.limit_s or LIMIT_S * times)
    with tempfile.TemporaryDirectory(prefix="gpu-acceptance-") as name:
        folder = Path(name)
        installed = install(options.wheels, folder / "site")
        size = "short" if options.short else "rehearsal" if rehearse else "gpu"
        head: dict[str, Any] = {
            "rehearsal": rehearse,
            "sizes": size,
            "date": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}",
            "python": platform.python_version(),
            "wheels": installed,
        }
        print(f"{'REHEARSAL (fake driver, CPU): ' * rehearse}{installed}", flush=True)
        variables = environment_of(folder / "site", folder, rehearse=rehearse)
        program = Acceptance(options.output, head, options.parts)
        # The process tree is read with psutil, which may be among the wheels.
        sys.path[:0] = [str(folder / "site"), str(ROOT / "src")]
        from wattlaw.common import processes

        processes.adopt_orphans(True)
        line = [sys.executable, str(HERE / "gpu_parts.py")]
        statuses = []
        for part in options.parts:
            limit_s = min(LIMITS_S[part] * times, end_s - time.monotonic() - 2 * _GRACE_S)
            if limit_s < 5:
                program.note(part, reason="no time was left")
                continue
            words = [part, str(program.results), str(folder), size]
            statuses.append(program.run(part, limit_s, [*line, *words], variables))
    print(f"{time.monotonic() - begun_s:.0f} s; results: {program.results}", flush=True)
    return 0 if statuses == ["done"] * len(options.parts) else 1


if __name__ == "__main__":
    sys.exit(main())
