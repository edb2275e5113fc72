"""Launchers, and the campaign that executes a plan.

``wattlaw.run`` is also the function of the Python API: the package can be called.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    def __call__(self, *args: Any, **options: Any) -> Any:
        return import_module("wattlaw.api.studies").run(*args, **options)


sys.modules[__name__].__class__ = _Callable
