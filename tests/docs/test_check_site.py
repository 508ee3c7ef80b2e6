"""Tests that the check of the site finds everything that a page would load from another server."""

from __future__ import annotations

import pytest

from docs.check_site import loads_of_page, loads_of_style, main


@pytest.mark.parametrize(
    "page",
    [
        '<script src="https://cdn.example/a.js"></script>',
        '<script src="//cdn.example/a.js"></script>',
        '<link rel="stylesheet" href="https://fonts.example/css">',
        '<link rel="preconnect" href="http://fonts.example" crossorigin>',
        '<img alt="" src="HTTPS://pictures.example/a.png"/>',
        '<img srcset="https://pictures.example/a.png 2x" src="a.png">',
        '<iframe src="https://video.example/"></iframe>',
        '<p style="background: url(https://pictures.example/a.png)">a</p>',
        "<style>@import 'https://fonts.example/css';</style>",
        '<pre class="mermaid"><code>a</code></pre>',
    ],
)
def test_external_resources_of_a_page_are_found(page: str):
    assert len(loads_of_page(page)) == 1


@pytest.mark.parametrize(
    "page",
    [
        '<a href="https://github.com/huggingface/optimum-intel">optimum</a>',
        '<link rel="canonical" href="https://docs.example/">',
        '<link rel="stylesheet" href="../assets/main.css"><script src="assets/a.js"></script>',
        '<img src="data:image/png;base64,AAAA"><style>a { background: url(b.svg) }</style>',
        "<p>https://fonts.example url(https://fonts.example)</p>",
    ],
)
def test_page_without_external_resources_has_no_loads(page: str):
    assert loads_of_page(page) == []


def test_external_url_of_a_style_is_found():
    assert loads_of_style("@font-face { src: url('https://fonts.example/a.woff2') }")
    assert loads_of_style("@font-face { src: url(../fonts/a.woff2) }") == []


def test_check_of_a_site_names_the_page_that_loads(tmp_path, capsys):
    assert main([str(tmp_path)]) == 1
    (tmp_path / "index.html").write_text("<p>a</p>")
    assert main([str(tmp_path)]) == 0
    below = tmp_path / "flags"
    below.mkdir()
    (below / "index.html").write_text('<img src="https://pictures.example/a.png">')
    capsys.readouterr()
    assert main([str(tmp_path)]) == 1
    assert "flags/index.html: <img> loads https://pictures.example/a.png" in capsys.readouterr().out
