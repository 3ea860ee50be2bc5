"""The pages in a browser: over http and from disk, wide and narrow, light and dark, and nothing from outside."""

import os
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from shiftbound import doctor, notebooks

ROOT = Path(__file__).parents[1]
NAMES = notebooks.names(ROOT / "notebooks")
QUIET = ("background-networking", "component-update", "sync", "quic", "gpu")
FLAGS = ["--headless", "--no-sandbox", "--no-first-run", *(f"--disable-{name}" for name in QUIET)]
INSTALL = "the browser tests need Chromium; install it with: apt-get install chromium"
WIDE, NARROW = {"width": 1300, "height": 900}, {"width": 390, "height": 800}

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture(scope="module")
def chromium():
    """The system's Chromium. Without it the tests are skipped aloud, unless SHIFTBOUND_REQUIRE_BROWSER forbids that."""
    path = doctor.chromium()
    if path is None:
        if os.environ.get("SHIFTBOUND_REQUIRE_BROWSER") == "1":
            pytest.fail(INSTALL)
        pytest.skip(INSTALL)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS, timeout=180_000)
        yield browser
        browser.close()


LOOK = r"""() => {
  const raw = [];
  const walk = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const node = walk.currentNode;
    if (node.parentElement.closest("pre, code, mjx-container, script, style")) continue;
    const left = /\$|\\[a-zA-Z({]|\{(prf|eq|cite|doc|numref|glue)\b|``|\*\*/;
    if (left.test(node.data)) raw.push(node.data.trim().slice(0, 80));
  }
  const count = (what) => document.querySelectorAll(what).length;
  return [count(".math:not(:has(mjx-container svg))"), count("[data-mml-node=merror]"), raw];
}"""


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


@pytest.fixture(scope="module")
def addresses(smoke_book):
    """Where the book is, over http and from disk."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(smoke_book.html)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield {"http": f"http://127.0.0.1:{server.server_port}", "file": smoke_book.html.as_uri()}
    server.shutdown()
    thread.join()
    server.server_close()


class Watched:
    """A page, and everything about it that a reader should never meet."""

    def __init__(self, browser, address, **options):
        self.address, self.troubles = address, []
        self.context = browser.new_context(**options)
        self.context.set_default_timeout(180_000)  # other tests share the cores
        self.page = self.context.new_page()
        self.page.on("console", lambda said: said.type in ("error", "warning") and self.troubles.append(said.text))
        self.page.on("pageerror", lambda error: self.troubles.append(str(error)))
        self.page.on("requestfailed", lambda asked: self.troubles.append(f"failed: {asked.url}"))
        self.page.on("request", self.asked)
        self.page.on("response", lambda got: got.status >= 400 and self.troubles.append(f"{got.status}: {got.url}"))

    def asked(self, request):
        if not request.url.startswith((self.address + "/", "data:", "blob:")):
            self.troubles.append(f"outside: {request.url}")

    def open(self, name):
        self.page.goto(f"{self.address}/{name}")
        self.page.wait_for_load_state("load")
        self.page.wait_for_function("() => !window.MathJax || window.MathJax.startup?.promise")
        self.page.evaluate("async () => { await window.MathJax?.startup?.promise; }")
        return self.page

    def __enter__(self):
        return self

    def __exit__(self, *raised):
        self.context.close()


def every_page(html: Path) -> list[str]:
    found = [path.relative_to(html).as_posix() for path in html.rglob("*.html") if "_static" not in path.parts]
    assert len(found) > len(NAMES) + 5
    return sorted(found)


@pytest.mark.parametrize(("scheme", "viewport"), [("http", WIDE), ("file", NARROW)], ids=["http-wide", "disk-narrow"])
def test_every_page_is_whole_and_asks_nobody(chromium, addresses, smoke_book, scheme, viewport):
    """No console error, no failed and no outside request, every formula typeset, nothing wider than the screen."""
    problems = []
    with Watched(chromium, addresses[scheme], viewport=viewport) as watched:
        for name in every_page(smoke_book.html):
            page = watched.open(name)
            untypeset, errors, raw = page.evaluate(LOOK)
            if untypeset or errors or raw:
                problems.append(f"{name}: {untypeset} formulas not typeset, {errors} with errors; raw text: {raw}")
            over = page.evaluate("() => document.scrollingElement.scrollWidth - window.innerWidth")
            if over > 0:
                problems.append(f"{name}: {over} pixels wider than the screen")
            problems += [f"{name}: {trouble}" for trouble in watched.troubles]
            watched.troubles.clear()
    assert problems == []


def test_there_is_one_search_bar(chromium, addresses):
    with Watched(chromium, addresses["file"], viewport=WIDE) as watched:
        page = watched.open("intro.html")
        shown = page.locator(".search-button__button, .bd-search input").filter(visible=True)
        assert shown.count() == 1


@pytest.mark.parametrize("scheme", ["http", "file"])
def test_the_search_finds(chromium, addresses, scheme):
    with Watched(chromium, addresses[scheme], viewport=WIDE) as watched:
        page = watched.open("intro.html")
        page.locator(".search-button__button").filter(visible=True).click()
        page.locator("#pst-search-dialog input").fill("ledger")
        page.keyboard.press("Enter")
        page.wait_for_selector("#search-results li a")
        links = page.locator("#search-results li a").evaluate_all(
            "found => found.map(each => each.getAttribute('href'))"
        )
        assert any("16_claims.html" in link for link in links)
        assert watched.troubles == []


def test_dark_mode_changes_the_inks_of_figures_and_cards(chromium, addresses):
    """By the reader's system, and by the button; the choice stays on the next page."""
    ink = "() => getComputedStyle(document.querySelector('.sb-figure svg [style*=sb-ink]')).stroke"
    colours = {}
    for scheme in ("light", "dark"):
        with Watched(chromium, addresses["http"], viewport=WIDE, color_scheme=scheme) as watched:
            page = watched.open("notebooks/16_claims.html")
            assert page.evaluate("() => document.documentElement.dataset.theme") == scheme
            colours[scheme] = page.evaluate(ink), page.evaluate("() => getComputedStyle(document.body).backgroundColor")
            card = page.evaluate("() => getComputedStyle(document.querySelector('.sb-claim')).backgroundColor")
            around = page.evaluate(
                "() => getComputedStyle(document.querySelector('.sb-figure').parentElement).backgroundColor"
            )
            assert around == "rgba(0, 0, 0, 0)"
            assert (sum(map(int, card[4:-1].split(","))) > 384) == (scheme == "light")
            if scheme == "light":
                for _ in range(3):  # the button goes through light, dark and the system's own
                    page.locator(".theme-switch-button").filter(visible=True).first.click()
                    if page.evaluate("() => document.documentElement.dataset.theme") == "dark":
                        break
                assert page.evaluate(ink) != colours["light"][0]
                watched.open("intro.html")
                assert page.evaluate("() => document.documentElement.dataset.theme") == "dark"
    assert colours["light"][0] != colours["dark"][0] and colours["light"][1] != colours["dark"][1]


def test_a_solution_is_hidden_until_it_is_asked_for(chromium, addresses):
    with Watched(chromium, addresses["file"], viewport=WIDE) as watched:
        page = watched.open("notebooks/16_claims.html")
        solution = page.locator(".solution.dropdown").first
        text = solution.locator("section, p:not(.admonition-title)").first
        assert not text.is_visible()
        solution.locator(".toggle-button").click()
        text.wait_for(state="visible")


def test_the_ledger_is_filtered_by_source_and_verdict(chromium, addresses):
    with Watched(chromium, addresses["file"], viewport=WIDE) as watched:
        page = watched.open("notebooks/16_claims.html")
        rows = page.locator(".sb-ledger tbody tr")
        shown = rows.filter(visible=True)
        assert shown.count() == rows.count() == 41
        page.locator(".sb-ledger-filters select").first.select_option("A")
        sources = shown.evaluate_all("found => found.map(row => row.dataset.source)")
        assert 0 < len(sources) < 41 and all("A" in source.split(",") for source in sources)
        page.locator(".sb-ledger-filters select").nth(1).select_option("ill-posed")
        assert shown.count() == 0
        page.locator(".sb-ledger-filters select").first.select_option("C")
        assert set(shown.evaluate_all("found => found.map(row => row.dataset.verdict)")) == {"ill-posed"}


def test_machine_checks_say_their_kind(chromium, addresses):
    with Watched(chromium, addresses["file"], viewport=WIDE) as watched:
        page = watched.open("notebooks/16_claims.html")
        for kind in ("exact", "exhaustive"):
            label = f"() => getComputedStyle(document.querySelector('.cell.tag_check.tag_{kind}'), '::before').content"
            assert page.evaluate(label).endswith(f'machine check – {kind}"')


def test_statements_figures_and_pages_are_numbered_by_chapter(chromium, addresses):
    with Watched(chromium, addresses["file"], viewport=WIDE) as watched:
        page = watched.open("notebooks/16_claims.html")
        assert page.locator("article h1").inner_text().startswith("16. The claims ledger")
        assert page.locator("#rem-no-referent .caption-number").inner_text().strip() == "Remark 16.1"
        assert page.locator("#fig-ledger figcaption").inner_text().startswith("Figure 16.1")


def test_every_figure_has_alt_text_and_its_data(chromium, addresses, smoke_book):
    with Watched(chromium, addresses["file"], viewport=WIDE) as watched:
        for name in NAMES:
            page = watched.open(f"notebooks/{name}.html")
            found = page.locator(".sb-figure:has(> svg)").evaluate_all(
                "found => found.map(each => [each.querySelector('svg[role=img]').getAttribute('aria-label').length,"
                " each.querySelector('a[download]').getAttribute('href').length])"
            )
            assert all(alt >= 20 and data > 40 for alt, data in found), name


def test_the_download_button_gives_the_executed_notebook(chromium, addresses, smoke_book):
    with Watched(chromium, addresses["http"], viewport=WIDE, accept_downloads=True) as watched:
        page = watched.open("notebooks/16_claims.html")
        page.locator(".dropdown-download-buttons > button").filter(visible=True).first.click()
        with page.expect_download() as waited:
            page.locator(".btn-download-source-button").first.click()
        assert Path(waited.value.path()).read_bytes() == (smoke_book.executed / "16_claims.ipynb").read_bytes()
