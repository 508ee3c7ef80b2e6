"""Draws what a load test has measured, as an SVG and as a page that needs no network."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from io import StringIO
from typing import TYPE_CHECKING, Final

from fastovms.errors import ConfigurationError
from fastovms.load_test.load_summary import MILLISECONDS, tokens_by_second, values_of
from fastovms.load_test.timeline import Load

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LATENCIES: Final = {
    "ttft": "time to first token, ms",
    "itl": "inter-token latency, ms",
    "e2el": "end-to-end latency, ms",
}

_PAGE: Final = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
body {{ max-width: 60rem; margin: 2rem auto; padding: 0 1rem; font: 1rem/1.5 system-ui }}
svg {{ width: 100%; height: auto }}
pre {{ overflow-x: auto }}
</style>
<h1>{title}</h1>
{svg}
<pre>{text}</pre>
</html>
"""


def html_page(title: str, text: str, svg: str) -> str:
    """Returns a page with the plots and the text of a report in it."""
    return _PAGE.format(title=escape(title), text=escape(text), svg=svg[svg.index("<svg") :])


def check_plots() -> None:
    """Raises ConfigurationError: what draws plots is not installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ConfigurationError("plots need matplotlib: pip install 'fastovms[plots]'") from None


def draw(loads: Mapping[str, Load]) -> str:
    """Returns an SVG with a line for each load: the distribution of each latency, and the output
    tokens of each second. The same loads give the same file.

    Args:
        loads: by the name that the legend has; without a legend where there is only one.
    """
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    with matplotlib.rc_context({"svg.hashsalt": "load", "svg.fonttype": "none"}):
        figure, rows = pyplot.subplots(2, 2, figsize=(9, 6), layout="constrained")
        *distributions, throughput = rows.flat
        for name, load in loads.items():
            for axes, latency in zip(distributions, _LATENCIES, strict=True):
                _draw_distribution(axes, name, load, latency)
            done = [timeline for timeline in load.timelines if timeline.failure is None]
            throughput.step(
                range(len(by_second := tokens_by_second(done))), by_second, where="post"
            )
        throughput.set_xlabel("seconds")
        throughput.set_ylabel("output tokens a second")
        for axes in rows.flat:
            axes.set_ylim(bottom=0)
            axes.grid(alpha=0.3)
        if len(loads) > 1:
            distributions[0].legend()
        written = StringIO()
        figure.savefig(written, format="svg", metadata={"Date": None})
        pyplot.close(figure)
    return written.getvalue()


def _draw_distribution(axes: Axes, name: str, load: Load, latency: str) -> None:
    done = [timeline for timeline in load.timelines if timeline.failure is None]
    values = sorted(value * MILLISECONDS for value in values_of(latency, done))
    axes.step(values, [100 * (i + 1) / len(values) for i in range(len(values))], label=name)
    axes.set_xlabel(_LATENCIES[latency])
    axes.set_ylabel("% within")
