"""Try a wheel in a fresh environment without torch: what the base install promises.

``python tools/try_wheel.py dist/wattlaw-*.whl`` makes an environment in a temporary folder,
installs the wheel and its dependencies there, and runs commands from outside the checkout. The
environment is of the Python that runs this program. ``--main`` runs the main commands only.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"
TABLE = "model,gpus,batch,seconds,watts\n" + "".join(
    f"mine,{gpus},{32 * gpus},{100 / gpus**0.9 + repeat / 10:.2f},{250 * gpus}\n"
    for gpus in (1, 2, 4, 8)
    for repeat in range(3)
)
FIELDS = "gpus=gpus,epoch_time_s=seconds,workload=model,global_batch=batch,power_w=watts"
STUDY = """\
name: commands
workloads:
  - {name: sleep, command: [python, work.py, "{local_batch}"]}
sweeps:
  - {gpus: [1, 2], global_batch: [32]}
repeats: 2
measure: {epochs: 2, warmup_epochs: 1, assume_cpu_w: 15}
launch: {kind: local, gpus_per_node: 2}
"""
STEPS_STUDY = """\
name: steps
workloads:
  - name: count
    command: [python, count.py]
    launch_with: none
    progress: {pattern: 'step (?P<step>\\d+)'}
sweeps:
  - {gpus: [1, 2], local_batch: [16]}
measure: {steps: 20, warmup_steps: 5, assume_cpu_w: 15}
launch: {kind: local, gpus_per_node: 2}
"""
COUNT = """\
import itertools, os, time

for step in itertools.count(1):
    print("step", step, "rank", os.environ.get("RANK"), flush=True)
    time.sleep(0.05)
"""
SCRIPT = """\
import sys, time
import wattlaw

with wattlaw.track(store="tracked", quiet=True) as run:
    for _ in run.epochs(range(2)):
        time.sleep(int(sys.argv[1]) / 100)
"""
API = """\
import wattlaw

results = wattlaw.open("imported")
print(len(results.fit().to_frame()), len(results.epochs), results.advise().to_dict())
results.plot("energy_speed")
results.report("api.html")
print(wattlaw.run(wattlaw.load_study("commands.yaml"), "commands"))
"""
#: Command lines with their exit codes and a text that they print: the main ones, and all others.
MAIN: tuple[tuple[str, int, str], ...] = (
    ("python --version", 0, f"Python {sys.version_info.major}.{sys.version_info.minor}."),
    ("python -m torch", 1, "No module named torch"),
    ("wattlaw --help", 0, "advise"),
    (f"wattlaw import table.csv --map {FIELDS} --store imported", 0, "12 runs added"),
    ("wattlaw fit table.csv --x gpus --y seconds", 0, ""),
    ("wattlaw advise imported -w mine", 0, ""),
    ("wattlaw predict imported --gpus 16", 0, "16"),
    ("wattlaw report imported -o report.html", 0, "report.html"),
    ("wattlaw measure -o measured -- python work.py 10", 0, ""),
)
OTHERS: tuple[tuple[str, int, str], ...] = (
    ("wattlaw examples", 0, "quickstart"),
    ("wattlaw examples copy quickstart", 0, "quickstart.yaml"),
    ("wattlaw check quickstart.yaml", 0, "ok"),
    ("wattlaw run quickstart.yaml", 3, 'pip install "wattlaw[train]"'),
    ("wattlaw workloads", 0, "resnet50"),
    ("wattlaw devices", 0, ""),
    ("wattlaw simulate -w resnet50 --hardware dgx-h100 --gpus 1,2,4 --local-batch 32", 0, ""),
    ("wattlaw run commands.yaml --store commands", 0, "4 done"),
    ("wattlaw status commands", 0, "4 done"),
    ("wattlaw export commands epochs -o epochs.csv", 0, ""),
    ("wattlaw run steps.yaml --store steps", 0, "2 done"),
    ("wattlaw advise steps", 0, ""),
    (
        r"wattlaw measure --steps 20 --progress step.(?P<step>\d+) -- python count.py",
        0,
        "measured steps",
    ),
    ("python work.py 10", 0, ""),
    ("wattlaw status tracked", 0, "2 done"),  # one of them under measure
    ("python api.py", 0, "12"),
)


def main() -> int:
    """Install the wheel, run the commands, and return 1 at the first that is not as expected."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--main", action="store_true", help="run the main commands only")
    options = parser.parse_args()
    wheel, commands = options.wheel.resolve(), MAIN if options.main else (*MAIN, *OTHERS)
    with tempfile.TemporaryDirectory(prefix="try-wheel-") as scratch:
        folder = Path(scratch) / "work"
        folder.mkdir()
        (folder / "table.csv").write_text(TABLE)
        (folder / "commands.yaml").write_text(STUDY)
        (folder / "steps.yaml").write_text(STEPS_STUDY)
        (folder / "work.py").write_text(SCRIPT)
        (folder / "count.py").write_text(COUNT)
        (folder / "api.py").write_text(API)
        programs = Path(scratch) / "venv" / "bin"
        venv.create(programs.parent)  # without pip, which takes seconds
        pip = [sys.executable, "-m", "pip", "--python", str(programs / "python")]
        install = [*pip, "install", "--quiet", "--no-compile"]
        subprocess.run([*install, "-c", str(CONSTRAINTS), str(wheel)], check=True)
        unset = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
        environment = {name: value for name, value in os.environ.items() if name not in unset}
        environment |= {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "160"}
        return 0 if all(_try(*command, folder, environment) for command in commands) else 1


def _try(line: str, code: int, text: str, folder: Path, environment: dict[str, str]) -> bool:
    begun_s = time.monotonic()
    words = line.split()
    program = str(Path(environment["PATH"].split(os.pathsep)[0]) / words[0])
    done = subprocess.run(
        [program, *words[1:]],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    output = done.stdout + done.stderr
    is_right = done.returncode == code and text in output
    print(f"{'ok' if is_right else 'FAILED':<6} {time.monotonic() - begun_s:6.2f} s  {line}")
    if not is_right:
        print(f"exit code {done.returncode}, expected {code} and {text!r} in:\n{output}")
    return is_right


if __name__ == "__main__":
    sys.exit(main())
