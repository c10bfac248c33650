"""Mends, in the test environment alone, the lines that keep SGLang from starting without a GPU. Run by ``make``.

    python cpu_lines.py SITE_PACKAGES RELEASES

Every edit names the text that it expects. Where that is not there and the new text is not either, it stops: what is
tested is then not the release that this file knows.
"""

import sys
from pathlib import Path

TORCHVISION = ("    _meta_registrations,\n", "")
"""The registry's build is for CUDA, and its meta registrations name an operator that it does not have here."""

PINNED = (
    'if getattr(sender, "supports_host_tensor_indices", False) and not (',
    'if torch.cuda.is_available() and getattr(sender, "supports_host_tensor_indices", False) and not (',
)
"""0.5.23 pins memory on the plain path; earlier releases do not have the line."""


def mend(path: Path, edit: tuple[str, str]) -> None:
    """Make one edit, once."""
    old, new = edit
    text = path.read_text(encoding="utf-8")
    if new and new in text:
        return
    if text.count(old) != 1:
        if not new:
            return
        raise SystemExit(f"{path}: the line to mend is not there")
    path.write_text(text.replace(old, new), encoding="utf-8")


def main(packages: Path, releases: Path) -> None:
    """Mend torchvision and each release below a folder."""
    mend(packages / "torchvision" / "__init__.py", TORCHVISION)
    for release in releases.iterdir():
        if release.name >= "0.5.23":
            mend(release / "sglang" / "srt" / "disaggregation" / "prefill.py", PINNED)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
