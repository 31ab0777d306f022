"""Sphinx's settings for the website of the course; helpers/tools/website.py copies them beside the pages."""

from latex2mathml.converter import convert

project = "Collectives"
extensions = ["myst_nb", "sphinx_copybutton"]
html_theme = "furo"
html_title = "Collectives"
html_theme_options = {"navigation_with_keys": True}
html_static_path = ["_static"]
html_css_files = ["style.css"]
html_copy_source = False
nb_execution_mode = "off"
nb_merge_streams = True
nb_render_error_lexer = "text"
myst_enable_extensions = ["dollarmath", "html_image"]  # html_image: <img> in Markdown is an image of the site
myst_heading_anchors = 4
suppress_warnings = ["mystnb.unknown_mime_type", "misc.highlighting_failure", "toc.not_included"]
copybutton_exclude = ".linenos, .gp"
html_math_renderer = "mathml"


def write_math(self, node):
    """Formulas as MathML, which browsers draw by themselves: MathJax would be loaded from elsewhere."""
    from docutils.nodes import SkipNode

    self.body.append(convert(node.astext(), display="inline" if node.tagname == "math" else "block"))
    raise SkipNode


def setup(app):
    app.add_html_math_renderer("mathml", (write_math, None), (write_math, None))
