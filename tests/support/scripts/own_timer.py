"""A script's own count of its optimizer steps and samples, with the time of each step.

The last line of output is ``RESULT`` and JSON. Environment variables: EPOCHS replaces the epochs of
a script, STEP_S the seconds that a step sleeps, and TRACK names a store in which ``wattlaw.track``
or the callback of a trainer measures 100 steps.
"""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

EPOCHS = int(os.environ.get("EPOCHS", "2"))


def number(name: str, default: int) -> int:
    """Return an environment variable, such as BATCH of a rank, ACCUMULATE batches or SAMPLES."""
    return int(os.environ.get(name, default))


class Timer:
    """Counts and times optimizer steps, by a library's callback (``trainer``) or by ``track``."""

    def __init__(self, step_s: float = 0.0, trainer: str | None = None) -> None:
        self.step_s = float(os.environ.get("STEP_S", step_s))
        self.samples = 0
        self.ends_s: list[float] = []
        self.times_s: list[float] = []
        self.callbacks, self._track, self._tracked = [], None, 0
        if (store := os.environ.get("TRACK")) and trainer:
            callback = import_module(f"wattlaw.callbacks.{trainer}").WattlawCallback
            self.callbacks = [callback(store=store, steps=100)]
        elif store:
            self._track = import_module("wattlaw").track(store=store, steps=100).__enter__()
        self.start()

    def start(self) -> None:
        self._begin_s = time.time()

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        if self._track is None:
            yield
        else:
            with self._track.evaluation():
                yield
        self.start()

    def add(self, samples: int, part: float = 1.0) -> None:
        """Count the samples of a batch, which is a part of the next step; sleep as long."""
        time.sleep(self.step_s * part)
        self.samples += samples

    def step(self) -> None:
        self.ends_s.append(time.time())
        self.times_s.append(self.ends_s[-1] - self._begin_s)
        self._begin_s = self.ends_s[-1]
        if self._track is not None:
            samples = (self.samples - self._tracked) * int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
            self._track.step(samples=samples)
            self._tracked = self.samples

    def end(self, **more: object) -> None:
        if self._track is not None:
            self._track.__exit__(None, None, None)
        result = {"pid": os.getpid(), "rank": int(os.environ.get("RANK", "0"))}
        result |= {"steps": len(self.times_s), "samples": self.samples, **more}
        result["ends_s"] = [round(end_s, 6) for end_s in self.ends_s]
        result["times_s"] = [round(time_s, 6) for time_s in self.times_s]
        # In one piece: the ranks of a job share their output.
        os.write(1, f"RESULT {json.dumps(result)}\n".encode())
