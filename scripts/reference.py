"""The reference pages of the site, from the comments of the headers and of the Go package, and from the docstrings of
the Python package."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import reference_c
import reference_cpp
import reference_python
from documentation import DOCS, ROOT


def pages() -> dict[Path, str]:
    """Return the texts of the pages, by the paths that the pages would have in docs/."""
    texts = {
        "c.md": reference_c.page(
            "C reference",
            ROOT / "include/zklock.h",
            "Programs link `-lzklock`; [first steps](../first-steps/c.md) explains how to get the library.\n"
            "[Errors](../errors.md) explains the statuses and their remedies.",
        ),
        "standalone.md": reference_c.page(
            "C reference of the standalone server",
            ROOT / "include/zklock_standalone.h",
            "Programs link `-lzklock_standalone`; [the page of the server](../../standalone/README.md) explains"
            " its use.",
        ),
        "cpp.md": reference_cpp.page(),
        "python.md": reference_python.page(),
        "go.md": go_page(),
    }
    return {DOCS / "reference" / name: text for name, text in texts.items()}


def go_page() -> str:
    """Return the page of the Go package. Only Go can read the package, and the site does not need Go."""
    if shutil.which("go") is None:
        return "# Go reference\n\nThis site was built without Go. `go doc -all zklock` describes every function.\n"
    command = ["go", "run", str(ROOT / "scripts/reference_go.go"), str(ROOT / "bindings/go")]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
