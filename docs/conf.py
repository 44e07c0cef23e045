"""Sphinx settings; ``make docs`` builds with every warning an error."""

import sys
from pathlib import Path

from holdfast import __version__

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "holdfast"
author = "the holdfast authors"
project_copyright = author
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode", "holdfast_docs", "holdfast_api"]
exclude_patterns = ["_build", "llms.md"]
myst_enable_extensions = ["colon_fence", "attrs_block"]
myst_heading_anchors = 3
smartquotes = False  # it makes one long dash of the two of a flag

autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_inherit_docstrings = False  # torch's are long, and those of our bases stand once, with the base
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
python_display_short_literal_types = True
python_maximum_signature_line_length = 84

html_theme = "furo"
html_title = f"holdfast {__version__}"
html_static_path = ["_static"]
html_css_files = ["flags.css", "cards.css"]
