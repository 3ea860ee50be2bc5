"""What the book adds to every page: MathJax from the installed package, the smoke stamp, and the page's provenance.

The build writes ``provenance.json`` beside the sources; nothing of it is in the notebooks, which stay the same to the
byte from build to build.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
from html import escape
from pathlib import Path

# The one bundle that the pages load needs these folders for its menu and its rarer TeX packages.
MATHJAX = ("tex-svg.js", "input/tex/extensions", "a11y", "sre", "ui")
STAMP = "smoke: the numbers mean nothing"


def use_mathjax(app, config) -> None:
    # Formulas as SVG: some browsers refuse web fonts to a page that is opened from disk.
    config.mathjax_path = "mathjax/tex-svg.js"
    config.mathjax3_config = {
        "svg": {"fontCache": "local"},
        "options": {"enableAssistiveMml": True},
    }


def copy_mathjax(app, exception) -> None:
    if exception is not None or app.builder.format != "html":
        return
    source = Path(importlib.util.find_spec("sphinx-mathjax-offline").origin).parent / "static" / "mathjax"
    target = Path(app.outdir) / "_static" / "mathjax"
    for name in MATHJAX:
        if (source / name).is_dir():
            shutil.copytree(source / name, target / name, dirs_exist_ok=True)
        else:
            target.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / name, target / name)


def read_provenance(app) -> None:
    path = Path(app.srcdir) / "provenance.json"
    app.shiftbound = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def stamp_page(app, pagename, templatename, context, doctree) -> None:
    data = app.shiftbound
    if not data or not context.get("body"):
        return
    top = f'<p class="sb-smoke" role="note">{STAMP}</p>' if data["profile"] == "smoke" else ""
    page = data["pages"].get(pagename, {})
    entries = {**data["book"], **page}
    rows = "".join(f"<dt>{escape(key)}</dt><dd>{escape(str(value))}</dd>" for key, value in entries.items())
    line = " · ".join(escape(part) for part in (data["profile"], data["book"]["commit"], data["book"]["rendered"]))
    foot = (
        f'<footer class="sb-provenance"><details><summary>How this page was made: {line}</summary>'
        f"<dl>{rows}</dl></details></footer>"
    )
    context["body"] = top + context["body"] + foot


def setup(app) -> dict[str, object]:
    # Jupyter Book sets it for sphinx-comments, which the book leaves out.
    app.add_config_value("comments_config", {}, "html")
    app.connect("config-inited", use_mathjax)
    app.connect("builder-inited", read_provenance)
    app.connect("html-page-context", stamp_page)
    app.connect("build-finished", copy_mathjax)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
