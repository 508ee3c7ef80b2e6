"""Writes small PDFs."""

from __future__ import annotations

from collections.abc import Sequence

FONT = b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>"


def pdf_file(texts: Sequence[str], *, stream: bytes | None = None, filters: bytes = b"") -> bytes:
    """Returns a PDF with one line on each page.

    Args:
        stream: the content of every page instead of its text.
        filters: the members that describe the encoding of the stream.
    """
    kids = b" ".join(b"%d 0 R" % (4 + 2 * index) for index in range(len(texts)))
    objects = [
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Kids[%b]/Count %d>>" % (kids, len(texts)),
        FONT,
    ]
    for index, text in enumerate(texts):
        objects.append(
            b"<</Type/Page/Parent 2 0 R/Resources<</Font<</F1 3 0 R>>>>/Contents %d 0 R>>"
            % (5 + 2 * index)
        )
        content = b"BT /F1 12 Tf 72 700 Td (%b) Tj ET" % text.encode("latin-1")
        content = content if stream is None else stream
        objects.append(
            b"<</Length %d%b>>\nstream\n%b\nendstream" % (len(content), filters, content)
        )
    data, places = b"%PDF-1.4\n", []
    for number, item in enumerate(objects, 1):
        places.append(len(data))
        data += b"%d 0 obj\n%b\nendobj\n" % (number, item)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    return data + (
        b"xref\n0 %d\n0000000000 65535 f \n%b" % (len(objects) + 1, table)
        + b"trailer\n<</Size %d/Root 1 0 R>>\n" % (len(objects) + 1)
        + b"startxref\n%d\n%%%%EOF" % len(data)
    )
