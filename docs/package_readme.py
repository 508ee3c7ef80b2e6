"""Prints the README with absolute links, as the page of a package index needs them.

python -m docs.package_readme https://HOST/ORG/fastovms >long_description.md

Files are below `/blob/TAG/`, pictures below `/raw/TAG/`, where TAG is the version's.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from fastovms import __version__

README = Path(__file__).parents[1] / "README.md"


def absolute(text: str, repository: str, tag: str) -> str:
    """Returns Markdown whose links to files and pictures begin with the repository's address."""
    base = repository.rstrip("/")
    text = re.sub(r"\]\((?!https?:|#)", f"]({base}/blob/{tag}/", text)
    return re.sub(r'(<img src=")(?!https?:)', rf"\g<1>{base}/raw/{tag}/", text)


if __name__ == "__main__":
    print(absolute(README.read_text(), sys.argv[1], f"v{__version__}"), end="")
