"""A matplotlib figure as SVG that can stand inside a page, among others.

What matplotlib writes is a document of its own. Here its ids are made unique to the figure (glyphs, clip paths, markers
and hatches are found by them), its colours become the page's variables, so that they follow light and dark, and what
only a document needs is left out. Letters stay paths: a page looks the same wherever it is opened. A text is `g.text`.
"""

from __future__ import annotations

import io
import re
from html import escape
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import matplotlib
from cycler import cycler
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from tutti.lab.picture import COLOURS, EDGE, GREY, GRID, STYLE, WHITE, tint

LOOK = {
    **STYLE,
    "svg.fonttype": "path",
    "axes.prop_cycle": cycler(color=COLOURS),
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "legend.frameon": False,
}
_NOTHING_SAID = dict.fromkeys(("Creator", "Date", "Format", "Type"))
_REFERENCE = re.compile(r"(?<=^#)[\w-]+|(?<=url\(#)[\w-]+")
_COLOUR = re.compile(r"#[0-9a-f]{6}\b")
_LONG_NUMBER = re.compile(r"-?\d+\.\d{3,}")


def _variables() -> dict[str, str]:
    """What every colour of the pictures is called in the page."""
    known = {WHITE: "paper", GREY: "muted", EDGE: "line", GRID: "grid"}
    known |= {to_hex(tint(index)): f"t{index}" for index in range(len(COLOURS))}
    known |= {colour.lower(): f"c{index}" for index, colour in enumerate(COLOURS)}
    return {colour: f"var(--{name})" for colour, name in known.items()}


_VARIABLES = _variables()


def make_svg(figure: Figure, name: str, label: str = "") -> str:
    """Read aloud as `label`, or not at all; `name` is no other figure's on the page."""
    buffer = io.BytesIO()
    with matplotlib.rc_context(LOOK):
        figure.savefig(buffer, format="svg", metadata=_NOTHING_SAID)
    root = ElementTree.fromstring(buffer.getvalue())
    _leave_out(root)
    _rename(root, name)
    for element in root.iter():
        element.tag = _local(element.tag)
        element.attrib = {_local(key): value for key, value in element.attrib.items()}
        _tidy(element)
        element.text = element.tail = None
    said = f'role="img" aria-label="{escape(label)}"' if label else 'aria-hidden="true"'
    inside = "".join(ElementTree.tostring(child, encoding="unicode") for child in root)
    width, height = (float(size) for size in root.attrib["viewBox"].split()[2:])
    size = f'width="{width / 0.75:g}" height="{height / 0.75:g}"'  # in pixels, of which a point has 4/3
    return f'<svg viewBox="{root.attrib["viewBox"]}" {size} {said}>{inside}</svg>'


def _leave_out(root: Element) -> None:
    """Metadata, and a style that would be the whole page's."""
    for parent in list(root.iter()):
        for child in list(parent):
            if _local(child.tag) in ("metadata", "style"):
                parent.remove(child)


def _rename(root: Element, name: str) -> None:
    """Short ids that begin with the figure's name; what nothing refers to needs none."""
    there = {element.attrib["id"] for element in root.iter() if "id" in element.attrib}
    used = {found for e in root.iter() for value in e.attrib.values() for found in _REFERENCE.findall(value)}
    ids = {old: f"{name}-{index}" for index, old in enumerate(sorted(there & used))}
    for element in root.iter():
        own = element.attrib.pop("id", "")
        if own in ids:
            element.attrib["id"] = ids[own]
        elif own.startswith("text_"):
            element.attrib["class"] = "text"
        for key, value in element.attrib.items():
            element.attrib[key] = _REFERENCE.sub(lambda match: ids.get(match[0], match[0]), value)


def _tidy(element: Element) -> None:
    """In the page's colours, and as exact as an eye can see."""
    attributes = element.attrib
    styles = [attributes.pop("style", ""), f"fill:{attributes.pop('fill')}" if "fill" in attributes else ""]
    style = ";".join(filter(None, styles)).replace(": ", ":").replace("; ", ";")  # variables work in styles only
    if style:
        attributes["style"] = _COLOUR.sub(lambda match: _VARIABLES.get(match[0], match[0]), style)
    if "d" in attributes:
        path = " ".join(attributes["d"].split())
        attributes["d"] = _LONG_NUMBER.sub(lambda match: f"{float(match[0]):.2f}", path)


def _local(name: str) -> str:
    return name.rpartition("}")[2]
