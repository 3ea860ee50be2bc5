"""What every figure carries: its finding, its alt text, its data; and nothing that changes from build to build."""

import base64
import re
import xml.etree.ElementTree

import IPython.display
import pytest

from shiftbound import InputError, figures

ALT = "Two rising lines, one steeper than the other."


@pytest.fixture
def shown(monkeypatch):
    """Draw and show one figure; the page that a reader gets."""

    def draw(title: str = "One rises < two", alt: str = ALT, name: str = "two lines") -> str:
        pages = []
        monkeypatch.setattr(IPython.display, "display", lambda bundle, raw: pages.append(bundle))
        fig, ax = figures.new(3.0, 2.0)
        ax.plot([0, 1], [0, 1], label="a")
        ax.plot([0, 1], [0, 2])
        ax.legend()
        figures.show(fig, name, title=title, alt=alt, data={"x": [0, 1], "y": [0, 1.5]})
        assert pages[0]["text/plain"] == f"[figure {name}: {title}]"
        return pages[0]["text/html"]

    return draw


def test_title_alt_and_data_travel_with_the_figure(shown):
    page = shown()
    assert "One rises &lt; two" in page and f'aria-label="{ALT}"' in page and 'role="img"' in page
    link = re.search(r'download="two lines.csv" href="data:text/csv;base64,([^"]+)"', page)
    assert base64.b64decode(link[1]).decode() == "x,y\n0,0\n1,1.5\n"


def test_the_picture_is_one_well_formed_svg_without_outside_references(shown):
    svg = re.search(r"<svg.*</svg>", shown(), flags=re.DOTALL)[0]
    root = xml.etree.ElementTree.fromstring(svg)
    assert root.attrib["viewBox"].split()[2:] == ["216", "144"] and "width" not in root.attrib
    assert "<style" not in svg and "<metadata" not in svg
    assert not re.findall(r'(?:href|src)="(?!#)', svg)


def test_inks_follow_the_page(shown):
    page = shown()
    for colour in (figures.INK, figures.GRID, figures.BLUE, figures.ORANGE):
        assert re.search(rf"var\(--sb-\w+, {colour}\)", page)
        assert not re.search(rf"(?<!, ){colour}", page)


def test_ids_are_the_figures_own_and_all_references_lead_somewhere(shown):
    page = shown()
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert ids and all(each.startswith("two-lines-") for each in ids)
    assert set(re.findall(r'(?:xlink:href="|url\()#([^")]+)', page)) <= set(ids)


def test_the_same_figure_gives_the_same_bytes(shown):
    assert shown() == shown()


@pytest.mark.parametrize(("change", "name"), [({"title": " "}, "title"), ({"alt": "a line"}, "alt")])
def test_a_figure_without_finding_or_alt_text_is_refused(shown, change, name):
    with pytest.raises(InputError, match=f"^{name} = "):
        shown(**change)


def _luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_lines_stand_out_from_white_paper():
    """Contrast of at least 3 to 1, what WCAG 2.2 asks of graphics."""
    for colour in figures.PALETTE:
        assert 1.05 / (_luminance(colour) + 0.05) >= 3, colour
