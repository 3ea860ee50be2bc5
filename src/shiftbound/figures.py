"""One style for every figure: readable in light and in dark, safe for colour-blind readers, with its data attached.

A figure is one inline SVG whose inks are CSS variables, so it follows the page's light and dark modes; in a notebook
outside the book the fall-back values apply. Colours are Okabe and Ito's, lightened in the dark by the style sheet.
Nothing in the SVG depends on the time or on random ids, so two builds give the same bytes.
"""

from __future__ import annotations

import base64
import html
import io
import re
from typing import TYPE_CHECKING

from shiftbound import require

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, RED, PURPLE, SKY = "#0072b2", "#c77c02", "#009e73", "#d55e00", "#b5588a", "#3f94c9"
PALETTE = (BLUE, ORANGE, GREEN, RED, PURPLE, SKY)
INK, GRID = "#1a1b1c", "#d4d5d6"
_VARIABLES = {
    INK: "ink", GRID: "grid", BLUE: "blue", ORANGE: "orange", GREEN: "green", RED: "red", PURPLE: "purple", SKY: "sky"
}  # fmt: skip


def style() -> None:
    """Set matplotlib's parameters; `new` calls it."""
    import matplotlib
    from cycler import cycler

    matplotlib.use("Agg")
    matplotlib.rcParams.update(
        {
            "figure.facecolor": "none", "axes.facecolor": "none", "savefig.facecolor": "none",
            "legend.facecolor": "none", "legend.edgecolor": GRID, "legend.frameon": False,
            "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": INK, "axes.titlecolor": INK,
            "xtick.color": INK, "ytick.color": INK, "grid.color": GRID, "grid.linewidth": 0.6,
            "axes.grid": True, "axes.axisbelow": True, "axes.spines.top": False, "axes.spines.right": False,
            "axes.prop_cycle": cycler(color=PALETTE), "lines.linewidth": 1.8, "lines.markersize": 5,
            "font.size": 11, "axes.titlesize": 11, "legend.fontsize": 10, "axes.titlelocation": "left",
            "svg.fonttype": "path", "svg.hashsalt": "shiftbound", "figure.constrained_layout.use": True,
        }
    )  # fmt: skip


def new(width: float = 7.0, height: float = 3.8, **subplots: object) -> tuple[Figure, object]:
    """A figure and its axes in the book's style; ``subplots`` goes to `matplotlib.pyplot.subplots`."""
    style()
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=(width, height), **subplots)


def show(fig: Figure, name: str, *, title: str, alt: str, data: pd.DataFrame | dict) -> None:
    """Display ``fig`` with the title that states its finding, alt text, and its data one click away.

    ``name`` is the figure's label without ``fig-``; ``data`` (a table, or columns of equal length) is what the figure
    draws, offered as CSV. Text must be plain: no HTML, no TeX.
    """
    require(bool(title.strip()), "title", title, "a sentence that states the finding")
    require(len(alt.strip()) >= 20, "alt", alt, "a description of the figure for those who cannot see it")
    import matplotlib.pyplot as plt
    import pandas as pd
    from IPython.display import display

    table = pd.DataFrame(data)
    buffer = io.StringIO()
    fig.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    plt.close(fig)
    csv = base64.b64encode(table.to_csv(index=False, float_format="%.8g", lineterminator="\n").encode()).decode()
    page = (
        f'<div class="sb-figure"><p class="sb-figure-title">{html.escape(title)}</p>'
        f"{_svg(buffer.getvalue(), name, alt)}"
        f'<p class="sb-figure-data"><a download="{html.escape(name)}.csv" href="data:text/csv;base64,{csv}">'
        f"Data of this figure (CSV, {len(table)} rows)</a></p></div>"
    )
    display({"text/html": page, "text/plain": f"[figure {name}: {title}]"}, raw=True)


def _svg(source: str, name: str, alt: str) -> str:
    """The SVG alone: scaled by the page, its inks as CSS variables, its ids its own, its alt text in place."""
    svg = source[source.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    # matplotlib's style element has a rule for "*" that would reach the whole page; the root's attributes do the same.
    svg = re.sub(r"<defs>\s*<style[^>]*>.*?</style>\s*</defs>", "", svg, flags=re.DOTALL)
    scaled = r'\1style="width:100%;max-width:\2pt;height:auto"'
    svg = re.sub(r'(<svg [^>]*?)width="([\d.]+)pt" height="[\d.]+pt"', scaled, svg, count=1)
    said = f'role="img" aria-label="{html.escape(alt)}" stroke-linejoin="round" stroke-linecap="butt"'
    svg = svg.replace("<svg ", f"<svg {said} ", 1)
    for colour, variable in _VARIABLES.items():
        svg = svg.replace(colour, f"var(--sb-{variable}, {colour})")
    prefix = re.sub(r"\W+", "-", name)
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}-\1"', svg)
    svg = re.sub(r'(xlink:href="|url\()#', rf"\1#{prefix}-", svg)
    return re.sub(r"\n\s*", "\n", svg)
