"""The site: `make docs`. Nothing is loaded from elsewhere, and it can be searched from a file."""

from importlib import metadata

project = "demx"
release = metadata.version("demx")
copyright = "the demx authors, Apache-2.0"
extensions = ["myst_parser"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = f"demx {release}"
html_show_sphinx = False
html_copy_source = False
nitpicky = True
