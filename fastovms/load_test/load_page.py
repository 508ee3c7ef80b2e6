"""Draws what a load test has measured, as an SVG and as a page that needs no network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from io import StringIO
from typing import TYPE_CHECKING, Final

from fastovms.errors import ConfigurationError
from fastovms.load_test.load_summary import MILLISECONDS, tokens_by_second, values_of
from fastovms.load_test.timeline import Load, Timeline

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


def draw(rounds: Mapping[str, Sequence[Load]]) -> str:
    """Returns an SVG with a line for each server: the distribution of each latency, and the output
    tokens of each second, round after round. The same loads give the same file.

    Args:
        rounds: by the name that the legend has; without a legend where there is only one.
    """
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    with matplotlib.rc_context({"svg.hashsalt": "load", "svg.fonttype": "none"}):
        figure, rows = pyplot.subplots(2, 2, figsize=(9, 6), layout="constrained")
        *distributions, throughput = rows.flat
        for name, loads in rounds.items():
            done = [[t for t in load.timelines if t.failure is None] for load in loads]
            for axes, latency in zip(distributions, _LATENCIES, strict=True):
                _draw_distribution(axes, name, [t for part in done for t in part], latency)
            tokens = [number for part in done for number in tokens_by_second(part)]
            throughput.stairs(tokens or [0.0], label=name)
        throughput.set_xlabel("seconds")
        throughput.set_ylabel("output tokens a second")
        for axes in rows.flat:
            axes.set_ylim(bottom=0)
            axes.grid(alpha=0.3)
        if len(rounds) > 1:
            distributions[0].legend()
        written = StringIO()
        figure.savefig(written, format="svg", metadata={"Date": None})
        pyplot.close(figure)
    return written.getvalue()


def _draw_distribution(axes: Axes, name: str, timelines: Sequence[Timeline], latency: str) -> None:
    values = sorted(value * MILLISECONDS for value in values_of(latency, timelines))
    axes.step(values, [100 * (i + 1) / len(values) for i in range(len(values))], label=name)
    axes.set_xlabel(_LATENCIES[latency])
    axes.set_ylabel("% within")
