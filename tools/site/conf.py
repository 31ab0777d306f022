"""Sphinx's settings for the website of the course; tools/website.py copies them next to the pages."""

import os
import re
from html import escape
from pathlib import Path
from urllib.parse import urlsplit

from latex2mathml.converter import convert

project = "Collectives"
extensions = ["myst_nb", "sphinx_copybutton", "tools.site.ranking"]
REPOSITORY = os.environ.get("REPOSITORY", "")  # owner/name on GitHub; tools/website.py sets it where it is known
html_theme = "furo"
html_title = "Collectives"
html_baseurl = os.environ.get("SITE_URL", "")  # where the site will be: a share image needs its whole address
html_favicon = "favicon.svg"
html_show_copyright = False
html_theme_options: dict = {"navigation_with_keys": True}
if REPOSITORY:
    link = {"name": "The course's repository", "url": f"https://github.com/{REPOSITORY}", "html": "Repository", "class": ""}
    html_theme_options["footer_icons"] = [link]
html_static_path = ["_static"]
html_css_files = ["style.css"]
html_js_files = ["pages.js"]
html_copy_source = False
html_search_scorer = str(Path(__file__).with_name("scorer.js"))
nb_execution_mode = "off"
nb_merge_streams = True
nb_render_error_lexer = "text"
myst_enable_extensions = ["dollarmath", "html_image"]  # html_image: <img> in Markdown is an image of the site
myst_heading_anchors = 4
suppress_warnings = ["mystnb.unknown_mime_type", "misc.highlighting_failure", "toc.not_included"]
copybutton_exclude = ".linenos, .gp"
html_math_renderer = "mathml"
DESCRIPTION = (
    "Collective communication and distributed training, run on a laptop and seen whole: ordinary PyTorch, no GPU."
)
LONGEST = 200  # characters of a description


def write_math(self, node):
    """Formulas as MathML, which browsers draw by themselves: MathJax would be loaded from elsewhere."""
    from docutils.nodes import SkipNode

    self.body.append(convert(node.astext(), display="inline" if node.tagname == "math" else "block"))
    raise SkipNode


def name_places(app, doctree):
    """Name each section by its heading: of several with the same words, docutils would number all but the first."""
    from docutils.nodes import section

    for found in list(doctree.findall(section)):
        first = found["ids"][0] if found["ids"] else ""
        if re.fullmatch(r"id\d+", first):
            words = re.sub(r"[^\w -]", "", found[0].astext().lower()).strip().replace(" ", "-")
            above = found.parent["ids"][0] if found.parent.get("ids") else app.env.docname
            name = f"{above}-{words}"
            while name in doctree.ids:
                name += "-again"
            found["ids"].insert(0, name)
            doctree.ids[name] = found


def describe(app, name, template, context, doctree):
    """Add a page's metadata for search engines and chats: its title, and its first paragraph."""
    from docutils.nodes import paragraph

    if doctree is None:
        return
    own = (found for found in doctree.findall(paragraph) if "plays" not in found.parent.get("classes", ()))
    texts = (" ".join(found.astext().split()) for found in own)
    said = DESCRIPTION if name == "index" else next((text for text in texts if len(text) > 60), DESCRIPTION)
    said = said if len(said) <= LONGEST else said[:LONGEST].rpartition(" ")[0] + " ..."
    title = doctree.get("title") or context.get("title") or project
    named = {"og:title": title, "og:description": said, "og:type": "website", "og:site_name": project}
    if html_baseurl:
        named["og:image"], named["twitter:card"] = f"{html_baseurl.rstrip('/')}/_static/share.png", "summary_large_image"
    tags = [f'<meta name="description" content="{escape(said)}">']
    tags += [f'<meta property="{key}" content="{escape(value)}">' for key, value in named.items()]
    context["metatags"] = (context.get("metatags") or "") + "\n".join(tags)


def entitle(app, exception):
    """Set the first page's title, which describes the course; the theme sets the site's name alone."""
    first = Path(app.outdir, "index.html")
    if exception is None:
        page = first.read_text(encoding="utf-8")
        title = re.search(r'property="og:title" content="([^"]+)"', page)[1]
        first.write_text(re.sub(r"<title>.*?</title>", f"<title>{title}</title>", page, count=1), encoding="utf-8")


def address_lost_pages(app, exception):
    """Make the links of the page for what isn't found work below any folder: a host answers with it for any address."""
    lost = Path(
        app.outdir, "404.html"
    )  # where it is not known where the site will be, its links lead on from its own folder
    if exception is None and html_baseurl:
        page, folder = lost.read_text(encoding="utf-8"), urlsplit(html_baseurl).path.rstrip("/") + "/"
        lost.write_text(page.replace("<head>", f'<head><base href="{folder}">', 1), encoding="utf-8")


def setup(app):
    app.add_html_math_renderer("mathml", (write_math, None), (write_math, None))
    app.connect("doctree-read", name_places, priority=100)  # before the lists of headings are made
    app.connect("html-page-context", describe)
    app.connect("build-finished", entitle)
    app.connect("build-finished", address_lost_pages)
