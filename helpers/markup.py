"""What the widgets have in common as HTML: how text and pictures look, in both themes of JupyterLab."""

from __future__ import annotations

import base64
from html import escape

import ipywidgets as widgets

TEXT = "font-size: 13px; line-height: 1.45; color: var(--jp-content-font-color1, inherit)"
SMALL = f"{TEXT}; font-size: 12px; opacity: 0.75"
ROOM = {"padding": "6px 2px 8px", "max_width": "100%"}
_PRE = "margin: 4px 0; font-size: 12px; line-height: 1.35"
# What ipywidgets leaves to be wished for: code in the font of code, tables within the page, a
# choice that is seen to be chosen, and where the keyboard is.
_STYLE = """<style>
.collectives-code textarea {
    font-family: var(--jp-code-font-family, monospace) !important; font-size: 12px; line-height: 1.35; white-space: pre }
.collectives :is(.widget-html, .widget-html-content) { min-width: 0; max-width: 100% }
.collectives .widget-toggle-buttons button { margin-bottom: 4px }
.collectives .widget-toggle-button.mod-active {
    box-shadow: inset 0 0 0 2px var(--jp-brand-color1, #1976d2); background: var(--jp-layout-color0, #fff) }
.collectives :is(button, input, select, textarea, summary, .noUi-handle):focus-visible {
    outline: 2px solid var(--jp-brand-color1, #1976d2) !important; outline-offset: 1px }
</style>"""


def box(*parts: widgets.Widget) -> widgets.VBox:
    """A widget's parts, one below the other."""
    style = widgets.HTML(_STYLE, layout={"display": "none"})
    return widgets.VBox([*parts, style], layout=ROOM).add_class("collectives")


def image(png: bytes, alt: str, pixels: tuple[int, int]) -> str:
    """A picture as HTML, with its words for those who do not see it, never wider than the page."""
    data = base64.b64encode(png).decode()
    return (
        f'<img alt="{escape(alt)}" src="data:image/png;base64,{data}" '
        f'style="display: block; width: {pixels[0]}px; max-width: 100%; height: auto; margin: 6px 0">'
    )


def table(words: str) -> str:
    """Text whose columns stay columns: it scrolls where the page is narrow."""
    return f'<pre style="{_PRE}; white-space: pre; overflow-x: auto">{escape(words)}</pre>'


def prose(words: str) -> str:
    """Text that may be broken where the page ends, as an error's."""
    return (
        f'<pre style="{_PRE}; white-space: pre-wrap; word-break: normal; overflow-wrap: anywhere">{escape(words)}</pre>'
    )


def failure(error: BaseException) -> str:
    """In a widget's callback nobody would see what is raised."""
    return prose(f"{type(error).__name__}: {error}")
