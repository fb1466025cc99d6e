"""Realistic models that are hard for mixed precision, with the nodes that a careful engineer would keep in fp32.

They are written as the field's networks are, from inputs of realistic size, and their pins were written with them.
"""

import importlib
import pkgutil

from .build import MODELS, build

for _module in sorted(module.name for module in pkgutil.iter_modules(__path__)):
    importlib.import_module(f"{__name__}.{_module}")

__all__ = ["MODELS", "build"]
