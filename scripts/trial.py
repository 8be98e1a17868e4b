"""Helpers for the scripts that install zklock and use it as on a machine without this repository."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn, Union

from demo import ROOT, TARGET

# The variables with the search paths of compilers, loaders and interpreters.
PATHS = [
    "CPATH",
    "C_INCLUDE_PATH",
    "CPLUS_INCLUDE_PATH",
    "LIBRARY_PATH",
    "LD_LIBRARY_PATH",
    "LD_RUN_PATH",
    "PYTHONPATH",
]
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in [*PATHS, "VIRTUAL_ENV"]}
# All builds share one target directory.
ENVIRONMENT["CARGO_TARGET_DIR"] = str(TARGET)


def run(*command: Union[str, Path], check: bool = True, **options: Any) -> "subprocess.CompletedProcess[str]":
    """Run a command and return its output."""
    options = {"cwd": ROOT, "env": ENVIRONMENT, "input": "", **options}
    words = [str(word) for word in command]
    result = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
    if check and result.returncode != 0:
        fail(f"{' '.join(words)[:300]} ended with status {result.returncode}:\n{result.stdout}")
    return result


def version() -> str:
    return run("scripts/dist", "--version").stdout.strip()


def files(directory: Path) -> Iterator[Path]:
    return (path for path in directory.rglob("*") if path.is_symlink() or not path.is_dir())


def expect(holds: bool, otherwise: str) -> None:
    if not holds:
        fail(otherwise)


def fail(sentence: str) -> NoReturn:
    sys.exit(f"{Path(sys.argv[0]).name}: {sentence}")
