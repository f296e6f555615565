"""Sphinx configuration: Markdown pages, the Furo theme, and a reference generated from the code."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import generate_reference

generate_reference.write(Path(__file__).parent / "reference")
generate_reference.renew_tables(Path(__file__).parent / "guides" / "structured-output.md")

project = "Gesso"
author = "the Gesso authors"
project_copyright = author
extensions = ["myst_parser"]
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3  # links to headings use GitHub's anchors, and Sphinx checks them
nitpicky = True
html_theme = "furo"
html_title = "Gesso"
html_static_path = ["_static"]
html_css_files = ["tables.css"]
html_copy_source = False
html_show_sphinx = False
pygments_style = "friendly"
pygments_dark_style = "monokai"
# The site works without a network: no fonts, scripts or styles from elsewhere.
html_theme_options = {"footer_icons": []}
