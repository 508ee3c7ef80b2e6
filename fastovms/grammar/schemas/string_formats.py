"""Lists the formats of JSON Schema that llguidance knows, as regular expressions of the texts that
it allows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_DATE: Final = (
    r"[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    r"|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|[12][0-9]))"
)
_HOUR: Final = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]"
_TIME: Final = rf"{_HOUR}:(?:[0-5][0-9]|60)(?:\.[0-9]+)?(?:[zZ]|[+-]{_HOUR})"

_DAYS: Final = r"(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)"
_HOURS: Final = r"T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)"

_OCTET: Final = r"(?:[0-9]|[1-9][0-9]|1[0-9]{2}|2[0-4][0-9]|25[0-5])"
_IPV4: Final = rf"(?:{_OCTET}\.){{3}}{_OCTET}"
_H16: Final = r"[0-9a-fA-F]{1,4}"
_LS32: Final = rf"{_H16}:{_H16}"
_IPV6: Final = "|".join(
    [
        rf"(?:{_H16}:){{7}}{_H16}",
        rf"::(?:{_H16}:){{0,5}}{_LS32}",
        rf"(?:{_H16})?::(?:{_H16}:){{0,4}}{_LS32}",
        *(
            rf"(?:(?:{_H16}:){{0,{number}}}{_H16})?::(?:{_H16}:){{0,{4 - number}}}{_LS32}"
            for number in (1, 2)
        ),
        rf"(?:(?:{_H16}:){{0,3}}{_H16})?::{_H16}:{_LS32}",
        rf"(?:(?:{_H16}:){{0,4}}{_H16})?::{_LS32}",
        rf"(?:(?:{_H16}:){{0,5}}{_H16})?::{_H16}",
        rf"(?:(?:{_H16}:){{0,6}}{_H16})?::",
    ]
)
"""RFC 4291, 2.2."""

_LABEL: Final = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
_ATOM: Final = r"[a-zA-Z0-9!#$%&'*+\-/=?\^_`{|}~]+"
_SUBDOMAIN: Final = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?"
_EMAIL: Final = rf"{_ATOM}(?:\.{_ATOM})*@(?:{_SUBDOMAIN}(?:\.{_SUBDOMAIN})*|\[{_IPV4}\])"
"""RFC 5321, 4.1.2, without quotes."""

_UUID: Final = r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"

_PERCENT: Final = "%[0-9a-fA-F]{2}"
_UNRESERVED: Final = r"a-zA-Z0-9\-._~!$&'()*+,;="
_SEGMENT: Final = rf"(?:[{_UNRESERVED}:@]|{_PERCENT})"
_ADDRESS: Final = "|".join(
    [
        rf"(?:{_H16}:){{7}}{_H16}",
        rf"(?:{_H16}:){{1,7}}:",
        rf"(?:{_H16}:){{1,6}}:{_H16}",
        *(rf"(?:{_H16}:){{1,{7 - most}}}(?::{_H16}){{1,{most}}}" for most in (2, 3, 4, 5)),
        rf"{_H16}:(?::{_H16}){{1,6}}",
        rf":(?::{_H16}){{1,7}}",
        "::",
        rf"v[0-9a-fA-F]+\.[{_UNRESERVED}:]+",
    ]
)
_HOST: Final = rf"(?:\[(?:{_ADDRESS})\]|(?:[{_UNRESERVED}]|{_PERCENT})*)"
_AUTHORITY: Final = rf"(?:(?:[{_UNRESERVED}:]|{_PERCENT})*@)?{_HOST}(?::[0-9]*)?"
_ROOTLESS: Final = rf"{_SEGMENT}+(?:/{_SEGMENT}*)*"
_QUERY: Final = rf"(?:[{_UNRESERVED}:@/?]|{_PERCENT})*"
_URI: Final = (
    rf"[a-zA-Z][a-zA-Z0-9+\-.]*:(?://{_AUTHORITY}(?:/{_SEGMENT}*)*|/(?:{_ROOTLESS})?|{_ROOTLESS}|)"
    rf"(?:\?{_QUERY})?(?:#{_QUERY})?"
)
"""RFC 3986, appendix A."""

FORMATS: Final[Mapping[str, str]] = {
    "date-time": f"{_DATE}[tT]{_TIME}",
    "date": _DATE,
    "time": _TIME,
    "duration": f"P(?:{_DAYS}(?:{_HOURS})?|{_HOURS}|[0-9]+W)",
    "email": _EMAIL,
    "hostname": rf"{_LABEL}(?:\.{_LABEL})*",
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "uri": _URI,
    "uuid": _UUID,
}
