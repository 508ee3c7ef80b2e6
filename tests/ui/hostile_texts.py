"""Makes texts that try to run a script, or to load something, in a page that shows Markdown."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, product
from typing import Final

ELSEWHERE: Final = "//elsewhere.example/x"

_SCRIPTS: Final = (
    "alert(1)",
    "globalThis.broken=1",
    f"fetch('{ELSEWHERE}')",
)
_HTML: Final = (
    "<script>{js}</script>",
    "<img src=x onerror={js}>",
    "<svg onload={js}>",
    "<svg><script>{js}</script></svg>",
    "<svg><animate onbegin={js} attributeName=x dur=1s>",
    "<math><mtext><table><mglyph><style><img src=x onerror={js}>",
    "<iframe srcdoc='<script>{js}</script>'></iframe>",
    "<iframe src='javascript:{js}'></iframe>",
    "<object data='javascript:{js}'></object>",
    "<embed src='javascript:{js}'>",
    "<form action='javascript:{js}'><button>go</button></form>",
    "<a href='javascript:{js}'>go</a>",
    "<details open ontoggle={js}>",
    "<video><source onerror={js}>",
    "<body onload={js}>",
    "<input autofocus onfocus={js}>",
    "<marquee onstart={js}>",
    "<style>@import '//elsewhere.example/x';</style>",
    "<link rel=stylesheet href=//elsewhere.example/x>",
    "<base href=//elsewhere.example/>",
    "<meta http-equiv=refresh content='0;url=//elsewhere.example/x'>",
    "<img src=//elsewhere.example/x>",
    "<div style='background:url(//elsewhere.example/x)'>",
    "<template><script>{js}</script></template>",
    "<noscript><p title='</noscript><img src=x onerror={js}>'>",
    "<!--><img src=x onerror={js}>-->",
    "<x-y id=body name=querySelector>",
)
_MARKDOWN: Final = (
    "[go](javascript:{js})",
    "[go](JaVaScRiPt:{js})",
    "[go](java&#115;cript:{js})",
    "[go](data:text/html,<script>{js}</script>)",
    "[go](vbscript:{js})",
    "![x](//elsewhere.example/x)",
    "![x](https:{where})",
    "![x](javascript:{js})",
    "![{html}](x)",
    "[x]: javascript:{js}\n\n[x]",
    "<javascript:{js}>",
    "<https:{where}?{js}>",
    "[{html}](https:{where})",
    "`{html}`",
    "```html\n{html}\n```",
    '```"><img src=x onerror={js}>\n{html}\n```',
    "# {html}",
    "> {html}",
    "- {html}",
    "| {html} | b |\n|:-:|--:|\n| {html} | c |",
    "**{html}**",
    "~~{html}~~",
    "{html}\n===",
    "\\{html}",
    "&lt;{html}&gt;",
    "${html}$",
    r"\({html}\)",
    r"\(\href{{javascript:{js}}}{{x}}\)",
    r"$$\htmlStyle{{background:url({where})}}{{x}}$$",
    r"\[\includegraphics{{https:{where}}}\]",
    r"$\fcolorbox{{red}}{{blue}}{{x}} \raisebox{{1em}}{{y}} \rule{{1em}}{{1em}}$",
    r"$\def\a{{\a\a}}\a$",
    r"$\text{{{html}}}$",
    "a[^1]\n\n[^1]: {html}\n{html}",
    "a[^<img/src=x/onerror={js}>]\n\n[^<img/src=x/onerror={js}>]: b",
)


def hostile_texts(count: int) -> list[str]:
    """Returns so many different texts."""
    return list(islice(dict.fromkeys(_texts()), count))


def _texts() -> Iterator[str]:
    for js, html in product(_SCRIPTS, _HTML):
        yield html.format(js=js)
    for index, (js, frame) in enumerate(product(_SCRIPTS, _MARKDOWN)):
        for offset in range(len(_HTML)):
            html = _HTML[(index + offset) % len(_HTML)].format(js=js)
            text = frame.format(js=js, html=html, where=ELSEWHERE)
            if "{html}" in frame or offset == 0:
                yield text
