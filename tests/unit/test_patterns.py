"""Patterns of settings: Python's meaning, RE2's time, and a sentence for each that cannot have both."""

import re
import time
import warnings

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from config.values.patterns import PatternError, compile_pattern

# What the two engines, left to themselves, see differently; and some that they do not.
TEXTS = (
    *("", "\n", "a", "A", "a\n", "a\nb", "b\n\n", "9", "\u0663", "x\u0663y", "\u00e9", "_", "-", " ", "\u00a0", "\v"),
    *("\x1c", "\u2003", "k", "\u212a", "s", "\u017f", "i", "I", "\u0130", "\u0131", "\u00df", "\u1e9e", "\u03c3"),
    *("\u03c2", "\u0345", "\u03b9", "{,3}", "aaa", "aaaa", "a]b", "[", "a-z", "\b", "\ud800", "A_9", "\u4e2d", "t=2\n"),
)

ATOMS = st.sampled_from([
    "a", "b", "i", "I", "k", "s", "\u00df", "\u03c3", "9", "\\d", "\\D", "\\w", "\\W", "\\s", "\\S", ".", "^", "$",
    "\\A", "\\Z", "\\n", "\\.", "\\-", "\\x41", "\\u0131", "\\061", "\\0", "{", "{}", "{,3", "]", "[a-z]", "[^a-z]",
    "[\\d_]", "[^\\d_]", "[\\W_]", "[^\\s]", "[]a]", "[^]a]", "[a\\-z]", "[a-]", "[\\b]", "[i-k]", "[^I]",
    "[[:alpha:]]", "[\\x00-\\x1f]", "[\\S\\n]", "(?#note)",
])  # fmt: skip
REPEATS = st.sampled_from(["", "", "", "*", "+", "?", "{2}", "{,3}", "{1,}", "{,}", "{1,2}", "*?", "+?", "??"])


def groups(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    opening = st.sampled_from(["(", "(?:", "(?P<name>", "(?i:", "(?s:", "(?m:", "(?-i:"])
    return st.builds("{}{}){}".format, opening, inner, REPEATS)


def sequences(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.lists(parts, min_size=1, max_size=4).map("".join)


PIECES = st.builds("{}{}".format, ATOMS, REPEATS)
BODIES = st.recursive(
    sequences(PIECES), lambda inner: st.one_of(sequences(groups(inner)), st.builds("{}|{}".format, inner, inner))
)
PATTERNS = st.builds("{}{}".format, st.sampled_from(["", "", "(?i)", "(?m)", "(?s)", "(?a)", "(?ai)", "(?im)"]), BODIES)


@settings(max_examples=600, deadline=None)
@given(
    PATTERNS,
    st.lists(
        st.text(st.sampled_from("aAbiIkKs9_ \n\u00df\u03c3\u0663\u212a\u0130\u0131\u00a0-]{,3}"), max_size=6),
        max_size=6,
    ),
)
@example("a$", ["a\n"])
@example("(a$|b)", ["a\n", "b\n"])
@example("^a{,3}$", ["aa", "a{,3}"])
@example("(?i)[^I]", ["\u0131", "k"])
@example("(?i)\\w", ["\u0345"])
@example("(?a)\\b", ["x\u0663y"])
@example("(?a)\\B", ["", "x\u0663y"])
@example("$^", ["\n"])
@example("(?ai)aa|b|k", ["\u212a"])
@example("aa|b|[kK]", ["\u212a"])
def test_what_is_taken_means_what_it_means_to_python(pattern: str, texts: list[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            theirs = re.compile(pattern)
        except re.error:
            with pytest.raises(PatternError):
                compile_pattern(pattern)
            return
    try:
        ours = compile_pattern(pattern)
    except PatternError:
        return  # what is refused, and how, is below
    for text in (*TEXTS, *texts):
        assert ours.found_in(text) == (theirs.search(text) is not None), f"{pattern!r} found in {text!r}"
        assert ours.is_all_of(text) == (theirs.fullmatch(text) is not None), f"{pattern!r} is all of {text!r}"


@pytest.mark.parametrize("pattern", ["i", "[a-z]", "k", "[^h-j]", "\u00df", "\u0130", "(?:s)"])
@pytest.mark.parametrize("flags", ["(?i)", "(?ai)"])
def test_ignoring_case_takes_the_same_letters(pattern: str, flags: str) -> None:
    """To RE2 alone, dotted and dotless i have no other case; and with ASCII letters alone, a k is no sign of Kelvin."""
    letters = [chr(code) for code in range(0x3000) if chr(code).swapcase() != chr(code)] + list(
        "\u0130\u0131\u212a\u017f\u0345"
    )
    ours, theirs = compile_pattern(flags + pattern), re.compile(flags + pattern)
    assert {one for one in letters if ours.is_all_of(one)} == {one for one in letters if theirs.fullmatch(one)}


@pytest.mark.parametrize(("pattern", "what"), [
    ("(?=a)", "a lookahead"), ("(?!a)", "a negative lookahead"), ("(?<=a)", "a lookbehind"),
    ("(?<!a)", "a negative lookbehind"), (r"(a)\1", "backreference"), ("(?P<x>a)(?P=x)", "backreference"),
    ("(a)?(?(1)b|c)", "condition"), (r"\bx", r"(?a)"), (r"(?a)x\B", r"\B"), ("(?x) a", "flag x"),
    (r"[^\W_]", "negated class"), ("a$b", "behind a $"), ("(a$)b", "behind a $"),
    (r"(b)(\D$)*", "a repeated group with a $"), ("(a|(b$))(?#c){2,}", "a repeated group with a $"),
    ("a{1001}", "RE2"), (r"(?a:\w)", "in front"), ("(", "no regular expression"), ("a" * 10_001, "too long"),
])  # fmt: skip
def test_what_cannot_be_matched_with_the_same_meaning_is_refused_in_words(pattern: str, what: str) -> None:
    with pytest.raises(PatternError, match=re.escape(what)):
        compile_pattern(pattern)


@pytest.mark.parametrize(
    "pattern", ["^(a+)+$", "^(a|a)*$", "^(a|aa)+$", "(.*)(.*)(.*)(.*)x$", r"^(\w+\s?)*$", "^(a?){30}a{30}$"]
)
def test_no_text_takes_long(pattern: str) -> None:
    """Python's own engine takes seconds to hours for these. The bound is wide: this is about the order of magnitude."""
    one = compile_pattern(pattern)
    began = time.process_time()
    assert not one.found_in("a" * 20_000 + "!")
    one.is_all_of("a" * 20_000 + "!")
    assert time.process_time() - began < 2
