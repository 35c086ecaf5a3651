"""Write the diffs of all pairs into examples/README.md, or check with --check that they are up to date."""

import argparse
import difflib
import sys
from pathlib import Path

HERE = Path(__file__).parent
PAIRS = ("language_model", "gan", "snapshots")


def make_diff(name: str) -> str:
    before, after = ((HERE / f"{name}_{kind}.py").read_text().splitlines() for kind in ("ddp", "tutti"))
    lines = difflib.unified_diff(before, after, f"{name}_ddp.py", f"{name}_tutti.py", lineterm="", n=1)
    return "\n".join(lines)


def make_readme() -> str:
    text = (HERE / "README.md").read_text().partition("## `")[0].rstrip()
    parts = [f"## `{name}_ddp.py` → `{name}_tutti.py`\n\n```diff\n{make_diff(name)}\n```" for name in PAIRS]
    return "\n\n".join([text, *parts]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    text = make_readme()
    if not parser.parse_args().check:
        (HERE / "README.md").write_text(text)
    elif text != (HERE / "README.md").read_text():
        sys.exit("examples/README.md is out of date; run `python examples/show_diffs.py`")


if __name__ == "__main__":
    main()
