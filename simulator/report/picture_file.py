"""Pictures by matplotlib as files: the extra ``plot`` is needed only when one is asked for; same figure, same bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from simulator.errors import ScenarioError

ENDINGS = (".png", ".svg", ".pdf")
DPI = 150
#: What makes a file differ from run to run.
_UNDATED = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}


def check_picture(path: Path) -> None:
    """Raise ScenarioError where no picture could be written: without matplotlib, or for another ending."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ScenarioError("--plot needs matplotlib: install the extra with  pip install 'clustersim[plot]'") from None
    if path.suffix.lower() not in ENDINGS:
        raise ScenarioError(f"--plot: '{path}': the ending says the format; accepted: {', '.join(ENDINGS)}")


def save_figure(figure: Any, path: Path) -> None:
    """Write a matplotlib figure as the ending of ``path`` says. Raises ScenarioError for a bad path."""
    import matplotlib

    try:
        with matplotlib.rc_context({"svg.hashsalt": "clustersim"}):  # same input, same bytes
            figure.savefig(path, metadata=_UNDATED.get(path.suffix.lower()))
    except OSError as error:
        raise ScenarioError(f"--plot: '{path}': {error.strerror or error}") from None
