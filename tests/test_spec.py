"""The grammar of model specs: what is read, what is written, and how a mistake is shown."""

from __future__ import annotations

import math
import string
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unsmooth import UnsmoothError
from unsmooth.spec import ModelSpec, SpecItem, parse, parse_item


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("deit_tiny_patch16_224", SpecItem("deit_tiny_patch16_224")),
        ("deit_tiny_patch16_224.fb_in1k", SpecItem("deit_tiny_patch16_224.fb_in1k")),
        ("deit_tiny_patch16_224()", SpecItem("deit_tiny_patch16_224")),
        ("  deit ( depth = 2 )  ", SpecItem("deit", {"depth": 2})),
        ("hf:facebook/deit-tiny-patch16-224", SpecItem("hf:facebook/deit-tiny-patch16-224")),
        ("hf:./folder/of mine", SpecItem("hf:./folder/of mine")),
        ("hf:vit(hidden_size=48, image_size=32)", SpecItem("hf:vit", {"hidden_size": 48, "image_size": 32})),
        ("torchvision:vit_b_16", SpecItem("torchvision:vit_b_16")),
        ("hf-hub:timm/deit_tiny", SpecItem("hf-hub:timm/deit_tiny")),
    ],
)
def test_hosts(text: str, host: SpecItem) -> None:
    assert parse(text) == ModelSpec(host)
    assert parse(text + "+attn_scale + feat_scale") == ModelSpec(host, (SpecItem("attn_scale"), SpecItem("feat_scale")))


def kinds(value: Any) -> Any:
    """A value's types: 1, 1.0 and True are equal, and mean different things to a host."""
    return [kinds(v) for v in value] if isinstance(value, list) else type(value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("-3", -3),
        ("0.5", 0.5),
        (".5", 0.5),
        ("1e-5", 1e-5),
        ("1e+5", 1e5),
        ("-2.5E+5", -2.5e5),
        (".5e+3", 500.0),
        ("2.e+1", 20.0),
        ("inf", math.inf),
        ("true", True),
        ("True", True),
        ("false", False),
        ("none", None),
        ("None", None),
        ("mid", "mid"),
        ("6:", "6:"),
        (":-2", ":-2"),
        ("'0,3,5'", "0,3,5"),
        ("'3'", "3"),
        ("'true'", "true"),
        ("''", ""),
        ('"it\'s"', "it's"),
        (r"'it\'s'", "it's"),
        (r"'a\\b'", "a\\b"),
        ("'a, b) + c(d=[e])'", "a, b) + c(d=[e])"),
        ("[]", []),
        ("[1, 2]", [1, 2]),
        ("[1, 2,]", [1, 2]),
        ("[1e+5, none, 'a,b', word]", [1e5, None, "a,b", "word"]),
        ("[[1, [2]], []]", [[1, [2]], []]),
    ],
)
def test_values(text: str, value: Any) -> None:
    """Read alone, in front of another option, and in a remedy; read again as written."""
    host, remedy = SpecItem("host", {"a": value}), SpecItem("remedy", {"a": value})
    assert parse(f"host(a={text})") == ModelSpec(host)
    assert parse(f"host( a = {text} , b=1)") == ModelSpec(SpecItem("host", {"a": value, "b": 1}))
    assert parse(f"host+remedy(a={text},)") == ModelSpec(SpecItem("host"), (remedy,))
    assert kinds(parse_item(f"host(a={text})").options["a"]) == kinds(value)
    assert parse(str(ModelSpec(host, (remedy,)))) == ModelSpec(host, (remedy,))


@pytest.mark.parametrize(
    "text",
    [
        "deit_small_patch16_224(depth=24)+attn_scale+feat_scale",
        "hf:facebook/deit-tiny+context_broadcast(kind=scaled, branch=both)",
        "swin(depths=[2, 1], ratio=0.5, name='a b')+attn_scale(blocks=6:)+no_skip(blocks=:-2)+adder(blocks='0,3,5')",
        "a(b=1e-05, c=1e+16, d=true, e=none, f='none', g='1')",
    ],
)
def test_a_canonical_spec_is_written_as_it_was_read(text: str) -> None:
    assert str(parse(text)) == text


def test_a_spec_without_a_host_is_its_remedies() -> None:
    assert (
        str(ModelSpec(None, (SpecItem("attn_scale"), SpecItem("adder", {"gain": 2.0})))) == "attn_scale+adder(gain=2.0)"
    )
    assert str(ModelSpec(None)) == ""


def test_options_that_cannot_be_written_are_reported() -> None:
    assert SpecItem("a", {"b": [1, None, ("c", 0.5)], "d": True}).writable
    assert not SpecItem("a", {"b": str}).writable
    assert not SpecItem("a", {"b": [print]}).writable


NAMES = st.text(string.ascii_letters + string.digits + "_.:/-", min_size=1)
KEYS = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]*", fullmatch=True)
VALUES = st.recursive(
    st.text() | st.integers() | st.floats(allow_nan=False) | st.booleans() | st.none(),
    lambda v: st.lists(v, max_size=3),
)
PARTS = st.builds(SpecItem, NAMES, st.dictionaries(KEYS, VALUES, max_size=3))


@settings(deadline=None)  # a busy machine is no mistake
@given(PARTS, st.lists(PARTS, max_size=3))
def test_parse_undoes_str(host: SpecItem, remedies: list[SpecItem]) -> None:
    spec = ModelSpec(host, tuple(remedies))
    again = parse(str(spec))
    assert again == spec
    assert again.host is not None
    assert kinds(list(again.host.options.values())) == kinds(list(host.options.values()))
    assert parse_item(str(host)) == host
    assert host.writable


@settings(deadline=None)
@given(st.text("abe-()[]=+,'\" \\1.:\n", max_size=30))
def test_any_text_is_read_or_refused(text: str) -> None:
    """No other exception, and the caret is under the text or right behind it."""
    try:
        spec = parse(text)
    except UnsmoothError as error:
        _, shown, caret = str(error).split("\n")
        assert len(shown) == len(text) + 2
        assert 2 <= caret.index("^") <= len(shown)
    else:
        assert parse(str(spec)) == spec


@pytest.mark.parametrize(
    ("text", "column", "expected"),
    [
        ("", 0, "a host name"),
        ("   ", 3, "a host name"),
        ("+attn_scale", 0, "a host name"),
        ("(depth=2)", 0, "a host name"),
        ("deit+", 5, "a remedy name"),
        ("deit++attn_scale", 5, "a remedy name"),
        ("deit+ )", 6, "a remedy name"),
        ("deit)", 4, "'(' and options, '+' and a remedy, or the end"),
        ("deit+ adder)", 11, "'(' and options, '+' and a remedy, or the end"),
        ("deit,adder", 4, "'(' and options, '+' and a remedy, or the end"),
        ("deit[2]", 4, "'(' and options, '+' and a remedy, or the end"),
        ("deit(depth=2))", 13, "'+' and a remedy, or the end"),
        ("deit(depth=2)adder", 13, "'+' and a remedy, or the end"),
        ("deit(depth=2)(a=1)", 13, "'+' and a remedy, or the end"),
        ("deit(", 5, "an option name, or ')'"),
        ("deit(,)", 5, "an option name, or ')'"),
        ("deit(2)", 5, "an option name, or ')'"),
        ("deit(depth=2,", 13, "an option name, or ')'"),
        ("deit(depth=2,,)", 13, "an option name, or ')'"),
        ("adder(blocks=0,3)", 15, "an option name, or ')'"),
        ("deit(depth", 10, "'=' and a value for depth"),
        ("deit(depth 2)", 11, "'=' and a value for depth"),
        ("deit(depth)", 10, "'=' and a value for depth"),
        ("deit(depth=", 11, "a value"),
        ("deit(depth=)", 11, "a value"),
        ("deit(depth=,)", 11, "a value"),
        ("deit(depth==2)", 11, "a value"),
        ("deit(depth=[)", 12, "a value"),
        ("deit(depth=2", 12, "',' or ')'"),
        ("deit(depth=2 width=3)", 13, "',' or ')'"),
        ("deit(depth=a+b)", 12, "',' or ')'"),
        ("deit(depth=[1", 13, "',' or ']'"),
        ("deit(depth=[1 2])", 14, "',' or ']'"),
        ("deit(name='a)", 10, "a closing '"),
        ("deit(name=\"a')", 10, 'a closing "'),
        ("deit(depth=2, depth=3)", 14, "each option once; depth is given twice"),
        ("deit\n(depth=", 12, "a value"),
    ],
)
def test_a_mistake_is_shown_where_it_is(text: str, column: int, expected: str) -> None:
    with pytest.raises(UnsmoothError) as caught:
        parse(text)
    message, shown, caret = str(caught.value).split("\n")
    assert message == f"cannot read the model spec: expected {expected}"
    assert shown == "  " + text.replace("\n", " ")
    assert caret == " " * (2 + column) + "^"


@pytest.mark.parametrize(
    ("text", "column", "expected"),
    [("", 0, "a remedy name"), ("adder(a='+')+x", 12, "one remedy;"), ("adder(a=1)x", 10, "'+' and a remedy")],
)
def test_parse_item_reads_one_remedy(text: str, column: int, expected: str) -> None:
    with pytest.raises(UnsmoothError, match=expected.replace("+", r"\+")) as caught:
        parse_item(text)
    assert str(caught.value).split("\n")[2].index("^") == 2 + column


def test_a_spec_that_is_not_a_string_raises() -> None:
    for thing in (None, 3, SpecItem("deit")):
        with pytest.raises(UnsmoothError, match=f"as a string.*got {type(thing).__name__}"):
            parse(thing)  # type: ignore[arg-type]
