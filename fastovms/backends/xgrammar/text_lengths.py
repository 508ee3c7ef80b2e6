"""Writes strings with a least and a greatest length as rules of XGrammar's EBNF for which it knows
beforehand nearly all tokens that they allow.

XGrammar (0.1.31, `cpp/grammar_compiler.cc`) makes a mask for each position within a rule, and looks
at each step at all tokens that go on behind the rule's end. A rule of one character that others
repeat makes that nearly the whole vocabulary. So the last characters that a string may have are
rules that lead to its end, each with a mask of its own; and the many before them are one rule,
which says what follows it. XGrammar relies on that where the rule stands at just one place, within
a sequence, and is not its last element.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from fastovms.backends.xgrammar.text_rules import CHARACTERS

AddRule = Callable[[str, Callable[[], str]], str]
"""Adds a rule of a name, if there is none yet, with the expression that the function returns;
returns the name."""

_NUM_KNOWN: Final = 16
"""How many characters that may follow have rules of their own. More of them lengthen the
compilation, fewer leave more tokens to be looked at."""

_QUOTE: Final = r'"\""'


def text_of_length(add_rule: AddRule, least: int, most: int | None, endless: str) -> str:
    """Returns an expression of a string's characters and the quote that ends it.

    Args:
        least: the fewest characters.
        most: the most, at least `least`; None = any number.
        endless: an expression of any characters and that quote.
    """
    return _Lengths(add_rule).between(least, most, endless)


class _Lengths:
    def __init__(self, add_rule: AddRule) -> None:
        self._add_rule = add_rule

    def between(self, least: int, most: int | None, endless: str) -> str:
        if most is None:
            return f"{self._exactly(least)} {endless}"
        num_far = max(0, most - _NUM_KNOWN)
        num_needed = min(least, num_far)
        end = self._last(least - num_needed, most - num_far)
        return f"{self._exactly(num_needed)} {self._at_most(num_far - num_needed, end)}"

    def _last(self, least: int, most: int) -> str:
        """Returns a rule of the last characters and the quote."""

        def expression() -> str:
            if most == 0:
                return _QUOTE
            after = self._last(max(0, least - 1), most - 1)
            return _joined("" if least else _QUOTE, *(f"{one} {after}" for one in CHARACTERS))

        return self._add_rule(f"last_{least}_{most}", expression)

    def _following(self, number: int) -> str:
        """Returns a rule of some characters, or of fewer and the quote."""

        def expression() -> str:
            rest = f" {self._following(number - 1)}" if number > 1 else ""
            one = self._add_rule("one", lambda: _joined(*CHARACTERS))
            return f"{_QUOTE} | {self._nothing()} {one}{rest}"

        return self._add_rule(f"following_{number}", expression)

    def _nothing(self) -> str:
        """Returns a rule of no text. XGrammar may put a rule that comes first in a sequence in
        place of its name, where what it knows of that rule is lost."""
        return self._add_rule("nothing", lambda: '""')

    def _power(self, exponent: int) -> str:
        """Returns a rule of 2**exponent characters, behind which _NUM_KNOWN more may come."""

        def expression() -> str:
            if exponent:
                half = self._power(exponent - 1)
                return f"{half} {half}"
            far = self._add_rule(
                "far", lambda: f"{_joined(*CHARACTERS)} (= {self._following(_NUM_KNOWN)})"
            )
            return f"{self._nothing()} {far} {self._nothing()}"

        return self._add_rule(f"power_{exponent}", expression)

    def _below_power(self, exponent: int) -> str:
        """Returns a rule of fewer than 2**exponent characters and the quote."""

        def expression() -> str:
            if not exponent:
                return _QUOTE
            fewer = self._below_power(exponent - 1)
            return f"{fewer} | {self._power(exponent - 1)} {fewer}"

        return self._add_rule(f"below_power_{exponent}", expression)

    def _exactly(self, number: int) -> str:
        """Returns an expression of this many characters."""
        return " ".join(map(self._power, _exponents(number))) or '""'

    def _at_most(self, number: int, end: str) -> str:
        """Returns a rule of this many characters and the rule of what ends them, or of fewer and
        the quote."""
        if not number:
            return end
        exponent, *_ = _exponents(number)
        rest = self._at_most(number - 2**exponent, end)
        return self._add_rule(
            f"at_most_{number}_{end}",
            lambda: f"{self._below_power(exponent)} | {self._power(exponent)} {rest}",
        )


def _exponents(number: int) -> list[int]:
    """Returns the powers of two that a number is the sum of, descending."""
    return [bit for bit in range(number.bit_length() - 1, -1, -1) if number >> bit & 1]


def _joined(*alternatives: str) -> str:
    return " | ".join(filter(None, alternatives))
