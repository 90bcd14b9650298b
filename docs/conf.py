"""How the documentation is built: ``sphinx-build -W --keep-going -b html docs docs/_build``.

Reference pages hold a line ``<!-- generated: NAME -->`` that ``_generate.py`` fills in from the code when the page is
read: nothing is written to disk, so nothing can go stale. Nothing is fetched from the network, then or by the reader.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

import _generate  # noqa: E402 - it stands beside this file

from simulator import __version__  # noqa: E402

project = "clustersim"
author = "the authors of clustersim"
project_copyright = ""
release = version = __version__
html_title = f"clustersim {__version__}"
html_show_copyright = False
html_last_updated_fmt = None

extensions = ["myst_nb", "sphinx.ext.autodoc"]
source_suffix = {".md": "myst-nb", ".ipynb": "myst-nb"}
exclude_patterns = ["_build"]
nitpicky = False
smartquotes = False

# ---- Markdown
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
# Links to files of the repository that are no pages become downloads.
suppress_warnings = ["mystnb.unknown_mime_type"]

# ---- the tutorial runs while the site is built; an error in a cell fails the build
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_in_temp = True
nb_execution_timeout = 120
nb_merge_streams = True
nb_ipywidgets_js: dict[str, dict[str, str]] = {}

# ---- Python API
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
add_module_names = False
python_maximum_signature_line_length = 100

# ---- looks
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["custom.css"]
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {"navigation_with_keys": True}
pygments_style = "friendly"
pygments_dark_style = "monokai"


def setup(app: object) -> None:
    """Fills in the generated parts of pages."""
    app.connect("source-read", _generate.fill_in)  # type: ignore[attr-defined]
    app.connect("env-get-outdated", _generate.pages_with_generated_parts)  # type: ignore[attr-defined]
