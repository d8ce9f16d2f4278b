"""The README as the page of the package: hatchling calls this when it builds the metadata.

A package index shows the README without the repository around it, so that its relative links get the repository's
address, which stands in pyproject.toml.
"""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(?<!\w)(?P<image>!?)(?P<text>\[[^\]]*\])\((?!https?:|#)(?P<target>[^)]+)\)")


def absolute_links(text: str, repository: str) -> str:
    """Return a Markdown ``text`` whose relative links lead into ``repository``: to pages, and to images as files."""

    def absolute(link: re.Match[str]) -> str:
        folder = "raw" if link["image"] else "blob"
        return f"{link['image']}{link['text']}({repository}/{folder}/main/{link['target']})"

    return LINK.sub(absolute, text)


class PackagePage(MetadataHookInterface):
    """Sets the field ``readme`` of the project's metadata."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set ``readme`` to the README with absolute links."""
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        page = absolute_links(text, metadata["urls"]["Repository"])
        metadata["readme"] = {"content-type": "text/markdown", "text": page}
