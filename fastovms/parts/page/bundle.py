"""Bundles the page's modules into one script and its stylesheets into one, so that a browser
requests two files instead of sixty."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from typing import Final

_IMPORT: Final = re.compile(r'^import (?:\{ ([^}]*) \} from )?"([^"]+)";$', re.MULTILINE)
_LATER: Final = re.compile(r'\bimport\("([^"]+)"\)')
_EXPORT: Final = re.compile(
    r"^export ((?:async )?(?:class|const|function)\b\*? (\w+))", re.MULTILINE
)
_COMMENT: Final = re.compile(r"^ *(?:/\*\*.*?\*/|// .*?)\n", re.MULTILINE | re.DOTALL)
_PLACE: Final = "import.meta.url"
_STYLE: Final = re.compile(r'^@import "([^"]+)";$', re.MULTILINE)

_LOADER: Final = """/** The modules of fastovms's page, each run when it is first imported. */
const loaded = new Map();
export const load = (name) => {
  if (!loaded.has(name)) loaded.set(name, modules[name]());
  return loaded.get(name);
};
const modules = {
"""


def bundle_modules(sources: Mapping[str, str], start: str) -> str:
    """Returns one script that runs the module `start`. The script exports `load`, which returns the
    exports of a module, given its path. Raises ValueError if a module imports an unknown one.

    Args:
        sources: the modules by path, such as "core/dom.js". They import names in braces, export
            declarations, and import other modules only by `import()`.
        start: the path of the module to run, relative to whose folder the script is served.
    """
    wrapped = "".join(_wrap(name, source, sources) for name, source in sources.items())
    return f'{_LOADER}{wrapped}}};\nload("{start}");\n'


def bundle_styles(sources: Mapping[str, str], start: str) -> str:
    """Returns a stylesheet in which imports are replaced by the imported stylesheets."""
    folder = posixpath.dirname(start)
    return _STYLE.sub(lambda found: sources[_resolve(folder, found[1])], sources[start])


def _wrap(name: str, source: str, sources: Mapping[str, str]) -> str:
    """Returns a module as an object member: a function that returns the module's exports."""
    folder = posixpath.dirname(name)

    def imported(found: re.Match[str]) -> str:
        names, path = found.groups()
        loading = f'load("{_known(_resolve(folder, path), sources)}");'
        return f"const {{ {names.replace(' as ', ': ')} }} = {loading}" if names else loading

    def imported_later(found: re.Match[str]) -> str:
        path = _resolve(folder, found[1])
        return f'Promise.resolve(load("{path}"))' if path in sources else f'import("./{path}")'

    exports = [found[2] for found in _EXPORT.finditer(source)]
    body = _EXPORT.sub(r"\1", _IMPORT.sub(imported, _COMMENT.sub("", source)))
    body = _LATER.sub(imported_later, body).replace(_PLACE, f'new URL("{name}", {_PLACE})')
    return f'"{name}": () => {{\n{body}return {{ {", ".join(exports)} }};\n}},\n'


def _known(path: str, sources: Mapping[str, str]) -> str:
    if path not in sources:
        raise ValueError(f"{path} is imported, but is not a module of the page")
    return path


def _resolve(folder: str, path: str) -> str:
    return posixpath.normpath(posixpath.join(folder, path))
