"""Numbers as people read them: three significant digits, and the unit that keeps them short."""

from __future__ import annotations

import math

NOTHING = "–"  # stands for a figure that there is not
_SIZES = ("B", "KiB", "MiB", "GiB", "TiB")


def format_number(value: float) -> str:
    """Three significant digits, without an exponent; whole from 1000 on, in groups from 10,000 on."""
    if not math.isfinite(value):
        return NOTHING
    if value == 0:
        return "0"
    magnitude = math.floor(math.log10(abs(float(f"{value:.2e}"))))  # of the rounded value: 9.999 is 10.0
    decimals = max(0, 2 - magnitude)
    text = f"{value:,.{decimals}f}"
    return text.replace(",", "") if abs(value) < 9999.5 else text


def format_bytes(nbytes: float) -> str:
    """370302 -> 362 KiB."""
    if not math.isfinite(nbytes):
        return NOTHING
    size, unit = float(nbytes), 0
    while size >= 999.5 and unit < len(_SIZES) - 1:
        size, unit = size / 1024, unit + 1
    return f"{round(size) if unit == 0 else format_number(size)} {_SIZES[unit]}"


def format_seconds(seconds: float) -> str:
    """0.0123 -> 12.3 ms; from two minutes on 3:05, from an hour on 1:03:05."""
    if not math.isfinite(seconds):
        return NOTHING
    if seconds >= 119.5:
        minutes, rest = divmod(round(seconds), 60)
        hours, minutes = divmod(minutes, 60)
        return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
    for scale, unit in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= 0.9995 * scale:
            return f"{format_number(seconds / scale)} {unit}"
    return f"{format_number(seconds * 1e6)} µs"


def trim(text: str) -> str:
    """Without the zeros that a tick needs not: 10.0 ms -> 10 ms."""
    number, _, unit = text.partition(" ")
    return f"{number.rstrip('0').rstrip('.') if '.' in number else number} {unit}"


def format_percent(share: float, decimals: int = 1) -> str:
    """0.969 -> 96.9 %."""
    return f"{100 * share:.{decimals}f} %" if math.isfinite(share) else NOTHING


def common_unit(seconds: list[float]) -> tuple[float, str]:
    """(scale, unit) in which all of these times read well side by side: the largest decides."""
    largest = max((s for s in seconds if math.isfinite(s)), default=0.0)
    return (1.0, "s") if largest >= 10 else (1e-3, "ms")
