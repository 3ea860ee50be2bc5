"""What the book adds to Jupyter Book: MathJax from the installed package, a chapter's own number, the smoke stamp, and
the provenance at the end of every page.

The build writes ``provenance.json`` beside the sources; nothing of it is in the notebooks, which stay the same to the
byte from build to build.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
from html import escape
from pathlib import Path

from docutils.nodes import reference
from sphinx.errors import ExtensionError
from sphinx_external_toc.collectors import TocTreeCollectorWithStyles

# The one bundle that the pages load needs these folders for its menu and its rarer TeX packages.
MATHJAX = ("tex-svg.js", "input/tex/extensions", "a11y", "sre", "ui")
STARTS = r'<article class="bd-article"[^>]*>|<div class="bd-search-container">'
ENDS = r'</article>|(?<=<div id="search-results"></div>)'
STAMP = "smoke: the numbers mean nothing"


def use_mathjax(app, config) -> None:
    # Formulas as SVG: some browsers refuse web fonts to a page that is opened from disk.
    config.mathjax_path = "mathjax/tex-svg.js"
    config.mathjax3_config = {"svg": {"fontCache": "local"}, "options": {"enableAssistiveMml": True}}


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


def number_by_name(app) -> None:
    """Number a chapter as its file is named, so that an edition without some chapters keeps the others' numbers."""
    counted = TocTreeCollectorWithStyles.assign_section_numbers

    def assign(self, env) -> list[str]:
        changed = counted(self, env)
        for docname, numbers in env.toc_secnumbers.items():
            named = re.match(r"notebooks/(\d+)_", docname)
            if not named:
                continue
            chapter = int(named[1])
            env.toc_secnumbers[docname] = {key: (chapter, *rest[1:]) for key, rest in numbers.items() if rest}
            for node in (env.titles[docname], *env.tocs[docname].findall(reference)):
                if node.get("secnumber"):
                    node["secnumber"] = [chapter, *node["secnumber"][1:]]
        return changed

    TocTreeCollectorWithStyles.assign_section_numbers = assign


def stamp_pages(app, exception) -> None:
    """Put the smoke stamp above and the provenance below the article of every page, search and index included."""
    path = Path(app.srcdir) / "provenance.json"
    if exception is not None or app.builder.format != "html" or not path.is_file():
        return
    data = json.loads(path.read_text(encoding="utf-8"))
    top = f'<p class="sb-smoke" role="note">{STAMP}</p>' if data["profile"] == "smoke" else ""
    line = " · ".join(escape(part) for part in (data["profile"], data["book"]["commit"], data["book"]["rendered"]))
    for page in sorted(Path(app.outdir).rglob("*.html")):
        if "_static" in page.parts:
            continue
        name = page.relative_to(app.outdir).with_suffix("").as_posix()
        entries = {**data["book"], **data["pages"].get(name, {})}
        rows = "".join(f"<dt>{escape(key)}</dt><dd>{escape(str(value))}</dd>" for key, value in entries.items())
        foot = (
            f'<footer class="sb-provenance"><details><summary>How this page was made: {line}</summary>'
            f"<dl>{rows}</dl></details></footer>"
        )
        text = page.read_text(encoding="utf-8")
        if text.startswith("<meta"):  # the first page's redirect
            continue
        start, end = re.search(STARTS, text), re.search(ENDS, text)
        if not start or not end:
            raise ExtensionError(f"{name}: the theme's page has no place for the stamp and the provenance")
        parts = text[: start.end()], top, text[start.end() : end.start()], foot, text[end.start() :]
        page.write_text("".join(parts), encoding="utf-8")


def setup(app) -> dict[str, object]:
    # Jupyter Book sets it for sphinx-comments, which the book leaves out.
    app.add_config_value("comments_config", {}, "html")
    app.connect("config-inited", use_mathjax)
    app.connect("builder-inited", number_by_name)
    app.connect("build-finished", copy_mathjax)
    app.connect("build-finished", stamp_pages)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
