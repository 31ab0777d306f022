"""matplotlib, as far as the SVG of a picture needs it: `install()` makes it importable in a page, which has Python alone.

Letters are as wide as DejaVu's. A picture has no PNG here.
"""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any, Sequence

# Thousandths of the letters' size.
PLAIN = {
    275: "'", 278: "ijl", 295: "IJ", 318: " ,.·", 337: "/:;\\|", 352: "f", 361: "-", 390: "()[]t", 401: "!₀₁₂₃₄₅₆₇₈₉", 411: "r",
    460: '"', 500: "*_`–", 518: "“”", 521: "s", 525: "z", 531: "?", 550: "c", 557: "L", 575: "F", 579: "k", 592: "vxy", 603: "P",
    612: "TYoa", 615: "e", 632: "EΣ", 635: "hnuSbdgpq$0123456789{}", 656: "K", 685: "AVΔXZB", 695: "R", 698: "C", 732: "U",
    750: "NH", 772: "DG", 780: "&", 787: "OQ", 818: "w", 838: "#+<=>^~→←↓×−≥≤✓✗", 863: "M", 871: "∅", 896: "★", 950: "%",
    974: "m", 989: "W", 1000: "@…",
}  # fmt: skip
BOLD = {
    306: "'", 343: "ijl", 348: " ", 365: "/\\|", 372: "IJ", 380: ",.·", 400: ":;", 415: "-", 435: "f₀₁₂₃₄₅₆₇₈₉", 456: "!()[]",
    478: "t", 493: "r", 500: "_`–", 522: '"*', 581: "?z", 594: "cs", 637: "L", 645: "x", 652: "vy", 665: "k", 676: "ae", 683: "TEFΣ",
    687: "o", 696: "$0123456789", 714: "hnu{}bdgpq", 722: "SYZ", 733: "PC", 762: "B", 772: "RXAVΔK", 812: "U", 821: "G", 830: "D",
    837: "HN#+<=>^~→←↓×−≥≤✓✗", 850: "OQ", 872: "&", 896: "★", 924: "w", 995: "M", 1001: "@…%", 1042: "m", 1103: "W",
}  # fmt: skip
MONO_WIDTH, UNKNOWN_WIDTH = 602, 700
WIDTHS = {
    face: {letter: wide for wide, letters in table.items() for letter in letters}
    for face, table in (("DejaVuSans", PLAIN), ("DejaVuSans-Bold", BOLD))
}


class FontProperties:
    def __init__(self, fname: str, size: float | None = None) -> None:
        self.face, self.size = fname.rpartition("/")[2].removesuffix(".ttf"), size or 10


def width_height_descent(text: str, font: FontProperties, ismath: bool) -> tuple[float, float, float]:
    table = WIDTHS.get(font.face)
    widths = [table.get(letter, UNKNOWN_WIDTH) if table else MONO_WIDTH for letter in text]
    return sum(widths) * font.size / 1000, font.size, 0.0


class Vertices(list):
    """Points with numpy's name for a list of them."""

    tolist = list.copy


class Path:
    MOVETO, LINETO, CURVE4, CLOSEPOLY = 1, 2, 4, 79

    def __init__(self, vertices: Sequence, codes: Sequence[int] | None = None, closed: bool = False) -> None:
        lines = [self.LINETO] * (len(vertices) - 1 - closed)
        self.vertices = Vertices(vertices)
        self.codes = Vertices(codes or [self.MOVETO, *lines, *[self.CLOSEPOLY] * closed])


class Artist:
    """Places and layers are matplotlib's; an SVG has its own."""

    def set_transform(self, place: Any) -> None: ...

    def set_zorder(self, order: int) -> None: ...


class Patch(Artist):
    def __init__(self, path: Path, facecolor: str, edgecolor: str, linewidth: float) -> None:
        self._path, self._fill, self._edge, self._width = path, facecolor, edgecolor, linewidth
        self._cap, self._style = "butt", "-"

    def set_capstyle(self, cap: str) -> None:
        self._cap = cap

    def set_joinstyle(self, join: str) -> None: ...

    def set_linestyle(self, style: Any) -> None:
        self._style = style

    def get_path(self) -> Path:
        return self._path

    def get_facecolor(self) -> tuple:
        return to_rgba(self._fill)

    def get_edgecolor(self) -> tuple:
        return to_rgba(self._edge)

    def get_linewidth(self) -> float:
        return self._width

    def get_capstyle(self) -> str:
        return self._cap

    def get_linestyle(self) -> Any:
        return self._style


class Affine2D:
    def translate(self, x: float, y: float) -> "Affine2D":
        return self

    scale = translate

    def __add__(self, after: Any) -> "Affine2D":
        return self


class FigureStandIn:
    dpi_scale_trans = None

    def __init__(self, **options: Any) -> None:
        self.artists: list[Artist] = []

    def add_artist(self, artist: Artist) -> None:
        self.artists.append(artist)


def to_rgba(tint: Any) -> tuple:
    """Red, green, blue, and 1, or 0 for "none"."""
    if not isinstance(tint, str):
        return (*tint, 1.0)[:4]
    if tint == "none":
        return 0.0, 0.0, 0.0, 0.0
    return (*(int(tint[k : k + 2], 16) / 255 for k in (1, 3, 5)), 1.0)


def to_rgb(tint: Any) -> tuple:
    return to_rgba(tint)[:3]


def to_hex(tint: Any) -> str:
    return "#" + "".join(f"{round(channel * 255):02x}" for channel in to_rgb(tint))


def install() -> None:
    """Make `import matplotlib` give this, in a Python without it."""
    parts = {
        "": {"get_data_path": lambda: ""},
        ".artist": {"Artist": Artist},
        ".backends": {},
        ".backends.backend_agg": {"FigureCanvasAgg": lambda figure: None},
        ".colors": {"to_hex": to_hex, "to_rgb": to_rgb, "to_rgba": to_rgba},
        ".figure": {"Figure": FigureStandIn},
        ".font_manager": {"FontProperties": FontProperties},
        ".patches": {"Patch": Patch, "PathPatch": Patch},
        ".path": {"Path": Path},
        ".textpath": {
            "TextPath": None,
            "text_to_path": SimpleNamespace(get_text_width_height_descent=width_height_descent),
        },
        ".transforms": {"Affine2D": Affine2D},
    }
    for name, names in parts.items():
        module = ModuleType(f"matplotlib{name}")
        vars(module).update(names, __path__=[])
        sys.modules[module.__name__] = module
