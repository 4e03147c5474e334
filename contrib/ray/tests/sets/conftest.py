"""Lets the processes of a run import gpud_ray where it is not installed, as in .venv."""

import os
from pathlib import Path

_ROOT = str(Path(__file__).parents[2])
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (_ROOT, os.environ.get("PYTHONPATH"))))
