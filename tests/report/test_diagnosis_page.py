"""Reports: pages and figures from a diagnosis's JSON alone, whatever it holds or lacks."""

from __future__ import annotations

import base64
import copy
import html
import io
import json
import math
import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread, imsave

from unsmooth.errors import UnsmoothError
from unsmooth.report import charts
from unsmooth.report import render as reports
from unsmooth.report.formatting import paragraphs, script_json, show, unique_names
from unsmooth.report.heatmap import heatmap
from unsmooth.report.page import formula
from unsmooth.report.pictures import PICTURES
from unsmooth.report.values import bound_pairs, deciding_vitals
from unsmooth.results.diagnosis import Diagnosis
from unsmooth.utils.text import spans

HEADS, GRID = 3, 4
IMG = "<img src=x onerror=alert(1)>"
SCRIPT = "</script><script>alert(1)</script>"
ODD = f"{IMG} {SCRIPT} $x^$ \u2028 {{{{7*7}}}} \"'&"


def spread(mean: Any, sd: Any = 0.05) -> dict[str, Any]:
    return {"mean": mean, "sd": sd, "images": 8}


def vital(title: str, family: str, parts: dict[str, list[Any]], **facts: Any) -> dict[str, Any]:
    return {
        "title": title, "formula": "‖HC[X]‖_F / ‖X‖_F", "reading": "0: all equal", "family": family, "main": "",
        "help": "How it is.\n\n    Σ_{i<j} x_i\n\nMore of `token_cosine`.", "low": 0.0, "high": None, "sample": None,
        "meaning": {}, "parts": parts, "skipped": {}, **facts,
    }  # fmt: skip


def picture(blue: float) -> str:
    file = io.BytesIO()
    y, x = np.mgrid[0:32, 0:32] / 31
    imsave(file, np.stack([x, y, np.full_like(x, blue)], axis=-1), format="png")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def sample(name: str, blocks: int, seed: int) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    queries = [[r, c] for r in (0, 2, 3) for c in (0, 2, 3)]

    def coded(heads: int) -> str:
        values = random.integers(0, 256, (heads, len(queries), GRID, GRID), dtype=np.uint8)
        return base64.b64encode(values.tobytes()).decode()

    whole = base64.b64encode(bytes(range(25))).decode()
    entry = {"grid": [GRID, GRID], "queries": queries, "heads": HEADS, "first_head": whole}
    return {
        "name": name,
        "picture": picture(seed / 8),
        "blocks": {str(b): {**entry, "maps": coded(HEADS), "similarity": coded(1)} for b in range(blocks)},
        "pictures": {str(b): token_pictures(random) for b in range(blocks)},
        "trajectories": {
            "blocks": list(range(blocks)), "shares": [0.5, 0.2], "patches": [[0.25, 0.25], [0.75, 0.5]],
            "points": [[[0.1 * b, p + 0.1 * b] for b in range(blocks)] for p in range(2)],
        },
    }  # fmt: skip


def token_pictures(random: np.random.Generator) -> dict[str, Any]:
    def coded(*shape: int) -> str:
        return base64.b64encode(random.integers(0, 256, shape, dtype=np.uint8).tobytes()).decode()

    return {
        "grid": [GRID, GRID], "pca": coded(GRID, GRID, 3), "pca_share": 0.4, "pca_own": coded(GRID, GRID, 3),
        "pca_own_share": 0.6, "norms": coded(GRID, GRID), "largest_norm": 12.5, "median_norm": 3.0, "heads": HEADS,
        "class_attention": coded(HEADS, GRID, GRID), "rollout": coded(GRID, GRID), "rollout_peak": 2.0,
    }  # fmt: skip


def diagnosis(name: str = "vit_tiny", blocks: int = 4, **changes: Any) -> dict[str, Any]:
    """A small diagnosis that has something for every section."""
    b = range(blocks)
    curve = [[1 / (1 + f + h) for f in range(9)] for h in range(HEADS)]
    rows = [
        {"remedy": "attn_scale", "name": f"blocks.{i}.omega", "parameter": "omega", "block": i, "count": 3,
         "mean": 0.1, "low": 0.0, "high": 0.2, "values": [0.0, 0.1, 0.2], "quantiles": False,
         "by_head": [0.1 * i, 0.1, 0.2]} for i in b
    ]  # fmt: skip
    rows.append({**rows[0], "parameter": "s", "count": 192, "values": [i / 63 for i in range(64)], "quantiles": True})
    rows.append({**rows[0], "parameter": "token", "block": None})
    return {
        "format": 1, "kind": "diagnosis",
        "model": {
            "name": name, "class": "VisionTransformer", "remedies": ["attn_scale"], "parameters": 5_000_000,
            "dtype": "float32", "skipped": ["cls.0: class attention is left alone"],
            "blocks": [
                {"index": i, "name": f"blocks.{i}", "tokens": 17, "channels": 8, "prefix": 1, "joins": ["attn"],
                 "attention": [{"kind": "global", "via": "sdpa", "heads": HEADS, "queries": 17, "keys": 17}]} for i in b
            ],
        },
        "images": {
            "source": "photographs", "count": 8, "size": [3, 32, 32], "mean": [0.5] * 3, "std": [0.5] * 3,
            "skipped": {"a.gif": "cannot be read", "b.gif": "cannot be read"}, "prefix_tokens": True,
        },
        "broken": None,
        "vitals": {
            "token_cosine": vital(
                "token similarity", "similarity",
                {"": [spread(0.2 + 0.1 * i) for i in b], "robust": [spread(0.1) for _ in b]}, high=1.0,
            ),
            "attention_cosine": vital(
                "map similarity", "attention",
                {"": [spread(0.5)] * blocks, "heads": [spread([0.4, 0.5, 0.6], [0.1] * 3)] * blocks},
            ),
            "attention_spectrum": vital("map spectrum", "attention", {"curve": [spread(curve, curve)] * blocks}),
            "equivalent_rank": vital("rank of maps", "attention", {"cumulative": [spread(curve, curve)] * blocks}),
            "layer_cka": vital(
                "similarity of blocks", "signal",
                {"": [None, *[spread(0.9)] * (blocks - 1)], "matrix": [spread([0.9] * blocks)] * blocks},
                skipped={"0": "there is no block before it"},
            ),
            "smoothing_bound": vital(
                "smoothing bound", "theory",
                {"attn": [spread(10.0**i) for i in b], "attn.measured": [spread(1.0)] * blocks},
                main="attn", formula="κ",
            ),
            "jacobian_spectrum": vital(
                "Jacobian spectrum", "theory",
                {"values": [None, spread([2.0, 1.0, 0.0]), *[None] * (blocks - 2)],
                 "skip.values": [None, spread([3.0, 2.0, 1.0]), *[None] * (blocks - 2)]},
            ),
            "depth_probe": vital("depth probe", "function", {}, skipped={str(i): "it needs labels" for i in b}),
        },
        "reference": {
            "how": "built anew", "images": 8, "vitals": {"token_cosine": {"": [spread(0.5)] * blocks}},
        },
        "samples": [sample("one.jpg", blocks, 1), sample("two.jpg", blocks, 2)],
        "learned": rows,
        "made": {"unsmooth": "0.1.0", "torch": "2.7", "timm": "1.0", "command": "unsmooth diagnose x", "seconds": 1.5},
        "findings": [{
            "key": "collapse", "title": "Tokens collapse", "severity": "severe", "blocks": [2, 3], "text": "They do.",
            "evidence": [{
                "vital": "token_cosine", "part": "", "family": "similarity", "text": "0.5 in block 3", "block": 3,
                "value": 0.5, "limit": 0.4, "margin": 0.1, "threshold": "similarity_rise", "source": "some models",
            }],
            "reference": "random start",
            "remedies": [
                {"spec": "attn_scale", "reason": "keeps variety", "safe": True, "fits": True},
                {"spec": "token_graying", "reason": "conditions", "safe": False, "fits": True},
            ],
        }],
        "verdict": {
            "state": "collapsing", "text": "Tokens collapse in blocks 2–3.", "blocks": [2, 3], "why": "skip",
            "levels": "similarity 0.2 to 0.5", "trends": "it rises by 0.3", "caveat": "Tokens, not accuracy.",
            "steps": [{"text": "Compare.", "command": "unsmooth compare x x+attn_scale", "python": "compare(…)"}],
            "would_change": ["collapsed: 0.9"],
        },
        "limits": [{
            "threshold": "similarity_rise", "vital": "token_cosine", "part": "", "above": True,
            "values": [0.4] * blocks, "meaning": "a rise", "source": "some models",
        }],
    } | changes  # fmt: skip


def render(diagnoses: list[dict[str, Any]], format: str) -> bytes:
    return reports.render([Diagnosis.from_dict(d) for d in diagnoses], format)


def diagnosis_figures(diagnoses: list[dict[str, Any]]) -> dict[str, Figure]:
    return reports.diagnosis_figures([Diagnosis.from_dict(d) for d in diagnoses])


def page(*diagnoses: dict[str, Any]) -> str:
    return render(list(diagnoses) or [diagnosis()], "html").decode()


def prose(text: str) -> str:
    """The page without its scripts and its styles."""
    return re.sub(r"<(script|style)\b.*?</\1>", "", text, flags=re.DOTALL)


def bare(**changes: Any) -> dict[str, Any]:
    """A diagnosis with no vital, no sample and nothing else that can be missing."""
    none: dict[str, Any] = {"vitals": {}, "reference": None, "samples": [], "learned": [], "findings": []}
    return diagnosis(**none, verdict={"state": "healthy", "text": "No action needed."}) | changes


def test_a_page_has_every_section_and_needs_nothing_else():
    text = page()
    for part in (
        "verdict",
        "decided",
        "findings",
        "heatmap",
        "curves",
        "spectra",
        "maps",
        "bounds",
        "learned",
        "skipped",
        "definitions",
        "made",
    ):
        assert f'id="{part}"' in text
    outside = re.findall(r"""(?:src|href)\s*=\s*["']?(?!#|data:)[^"'\s>]+""", prose(text))
    assert outside == []
    assert "@import" not in text.split("</style>")[0] and "url(" not in text.split("</style>")[0]
    assert "default-src &#39;none&#39;" in text


def test_a_page_says_what_the_diagnosis_says():
    text = html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", prose(page()))))
    for said in (
        "Tokens collapse in blocks", "skip", "0.5 in block 3", "attn_scale", "safe on pretrained weights",
        "changes the outputs at once", "it needs labels", "blocks 0–3: depth probe", "2 images: cannot be read",
        "cls.0: class attention is left alone", "unsmooth diagnose x", "torch 2.7", "mean 0.5, 0.5, 0.5", "built anew",
    ):  # fmt: skip
        assert said in text.replace("\u2060", ""), said


def test_a_page_shows_limits_and_steps():
    text = html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", prose(page()))))
    for said in (
        "What decided the verdict", "limit 0.400 ( similarity_rise ), 0.100 past it; from some models",
        "Levels: similarity 0.2 to 0.5", "Caveat: Tokens, not accuracy.", "unsmooth compare x x+attn_scale",
        "would change to collapsed: 0.9", "Dashed lines are limits",
    ):  # fmt: skip
        assert said in re.sub(r"\s+", " ", text), said


def test_curves_carry_their_limits_and_the_deciding_ones_come_first():
    curves = charts.curves([Diagnosis.from_dict(diagnosis())])
    assert curves[0]["key"] == "token_cosine"
    assert [limit["values"] for limit in curves[0]["parts"][0]["limits"]] == [[0.4] * 4]


def test_a_note_does_not_decide_a_verdict():
    noted = diagnosis()
    noted["findings"][0] |= {"severity": "note"}
    noted["findings"][0]["evidence"][0] |= {"vital": "max_logit", "part": ""}
    assert deciding_vitals([Diagnosis.from_dict(noted)])[:3] == ["token_cosine", "effective_rank", "max_logit"]


def test_a_diagnosis_without_weights_says_so_before_anything_else():
    plain = diagnosis()
    plain["model"]["weights"] = {"kind": "none"}
    said = str(Diagnosis.from_dict(plain))
    assert said.startswith("No weights were loaded")
    assert page(plain).index("No weights were loaded") < page(plain).index("Tokens collapse in blocks")


def test_the_page_leads_with_verdict_deciding_curves_and_images_and_folds_the_rest():
    text = prose(page())
    order = [
        text.index(f'id="{part}"') for part in ("verdict", "curve-token_cosine", "map-picture", "findings", "heatmap")
    ]
    assert order == sorted(order)
    folds = re.findall(r'<section id="(\w+)" class="folded"', text)
    assert folds == ["heatmap", "curves", "spectra", "bounds", "learned", "skipped", "definitions", "made"]
    assert '<details class="fold" open' not in text


def limit(key: str, values: list[float | None], part: str = "", above: bool = True) -> dict[str, Any]:
    return {
        "threshold": "t",
        "vital": key,
        "part": part,
        "above": above,
        "values": values,
        "meaning": "m",
        "source": "s",
    }


def heat(d: dict[str, Any]) -> dict[str, list[Any]]:
    return heatmap([Diagnosis.from_dict(d)])


def test_colour_means_past_a_limit_and_such_rows_come_first():
    groups = heat(diagnosis())  # token similarity is 0.2 to 0.5, its limit 0.4
    assert next(iter(groups)) == "limits"
    (row,) = groups["limits"]
    assert (row.key, [cell.bad for cell in row.models[0].cells]) == ("token_cosine", [False, False, True, True])
    assert [cell.limit for cell in row.models[0].cells] == [None, None, 0.4, 0.4]
    rest = [row for family, rows in groups.items() if family != "limits" for row in rows]
    assert rest and not any(cell.bad for row in rest for model in row.models for cell in model.cells)


def test_a_limit_below_is_passed_by_small_values():
    (row,) = heat(diagnosis(limits=[limit("token_cosine", [0.3] * 4, above=False)]))["limits"]
    assert [cell.bad for cell in row.models[0].cells] == [True, True, False, False]


def test_a_row_shows_the_part_that_is_past_its_limit():
    (row,) = heat(diagnosis(limits=[limit("token_cosine", [0.05] * 4, "robust")], findings=[]))["limits"]
    assert (row.part, [cell.value for cell in row.models[0].cells]) == ("robust", [0.1] * 4)


def test_a_row_with_nothing_in_it_has_no_shade():
    groups = heat(diagnosis(findings=[], limits=[]))
    rows = {row.key: row for rows in groups.values() for row in rows}
    assert "limits" not in groups
    assert rows["attention_cosine"].flat and not rows["token_cosine"].flat
    assert {cell.level for cell in rows["attention_cosine"].models[0].cells} == {0.0}
    assert '<tr class="first flat">' in page(diagnosis(findings=[], limits=[]))


def test_a_healthy_page_leads_with_the_curves_that_have_limits():
    d = diagnosis(findings=[], limits=[limit("attention_cosine", [0.9] * 4), limit("token_cosine", [0.9] * 4)])
    text = page(d)
    first = text[text.index('id="decided"') : text.index('id="maps"')]
    assert re.findall(r'id="curve-(\w+)"', first) == ["token_cosine", "attention_cosine"]


def test_a_limit_that_no_value_can_reach_is_not_drawn():
    d = diagnosis(limits=[limit("token_cosine", [0.4, 1.2, 0.4, None]), limit("token_cosine", [1.1] * 4)])
    part = next(c for c in charts.curves([Diagnosis.from_dict(d)]) if c["key"] == "token_cosine")["parts"][0]
    assert [drawn["values"] for drawn in part["limits"]] == [[0.4, None, 0.4, None]]


def test_the_deciding_part_is_drawn_first():
    d = diagnosis()
    d["findings"][0]["evidence"][0]["part"] = "robust"
    curve = next(c for c in charts.curves([Diagnosis.from_dict(d)]) if c["key"] == "token_cosine")
    assert curve["parts"][0]["part"] == "robust"
    assert (curve["low"], curve["high"]) == (None, None)  # the range is that of the main part


@pytest.mark.parametrize("format", ["png", "svg", "pdf"])
def test_figures_are_files_of_their_format(format):
    content = render([diagnosis()], format)
    assert content.startswith({"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[format])
    assert content == render([diagnosis()], format)


def test_an_unknown_format_is_answered_with_the_known_ones():
    with pytest.raises(UnsmoothError, match=r"html.*pdf.*png.*svg"):
        render([diagnosis()], "docx")
    with pytest.raises(UnsmoothError, match="at least one"):
        render([], "html")
    with pytest.raises(UnsmoothError, match="at least one"):
        diagnosis_figures([])


def hostile() -> dict[str, Any]:
    """Every text of a diagnosis that others may have written."""
    d = diagnosis(ODD)
    d["images"] |= {"source": ODD, "skipped": {ODD: ODD}}
    d["made"]["command"] = ODD
    d["model"] |= {"class": ODD, "remedies": [ODD], "skipped": [ODD]}
    d["samples"][0]["name"] = ODD
    d["samples"][1]["picture"] = f"https://example.com/{ODD}"
    d["verdict"] |= {"text": ODD, "why": ODD}
    d["findings"][0] |= {"title": ODD, "text": ODD, "reference": ODD}
    d["findings"][0]["evidence"][0] |= {"text": ODD, "part": ODD}
    d["findings"][0]["remedies"][0] |= {"spec": ODD, "reason": ODD}
    d["learned"][0] |= {"remedy": ODD, "parameter": ODD, "name": ODD}
    d["vitals"]["depth_probe"]["skipped"] = {"0": ODD}
    for facts in d["vitals"].values():
        facts |= {"title": ODD, "formula": ODD, "reading": ODD, "help": ODD, "meaning": {"": ODD, "robust": ODD}}
    return d


@pytest.mark.parametrize("count", [1, 2])
def test_nothing_that_others_wrote_becomes_markup(count):
    text = page(*[hostile()] * count)
    assert "<img" not in prose(text)
    assert len(re.findall(r"<script", text)) == len(re.findall(r"</script>", text)) == 4
    assert "\u2028" not in re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1]
    assert "https://example.com" not in re.search(r'id="samples">(.*?)</script>', text, re.DOTALL)[1]
    assert "{{7*7}}" in prose(text)


def test_no_name_breaks_a_figure():
    for figure in diagnosis_figures([hostile(), hostile()]).values():
        figure.set_dpi(30)
        figure.canvas.draw()


def test_json_in_a_script_element_can_neither_end_it_nor_change():
    value = {"a": [SCRIPT, "<!--", "\u2028\u2029&", None, 1.5]}
    text = script_json(value)
    assert not set(text) & set("<>&\u2028\u2029")
    assert json.loads(text) == value


def test_a_section_without_data_says_why():
    text = html.unescape(prose(page(bare())))
    for reason in (
        "No vital has a value for any block.", "attention_spectrum was not measured", "has no sample images.",
        "Bounds are measured on request", "No remedy with learned parameters",
    ):  # fmt: skip
        assert reason in text
    d = diagnosis()
    d["vitals"]["attention_spectrum"] |= {"parts": {}, "skipped": {"0": "its attention is over channels"}}
    d["vitals"]["equivalent_rank"] |= {"parts": {}}
    assert "No block has a spectrum: its attention is over channels." in page(d)


@pytest.mark.parametrize("format", ["html", "png"])
def test_what_is_not_a_number_breaks_nothing(format):
    d = diagnosis(broken={"block": 2, "where": "attention branch"})
    parts = d["vitals"]["token_cosine"]["parts"]
    parts[""] = [spread(None, None), spread(None), None, {"mean": None}]
    d["vitals"]["attention_cosine"]["parts"]["heads"][1] = spread([None, None, 1.0])
    d["vitals"]["attention_spectrum"]["parts"]["curve"] = [spread([[None] * 9] * HEADS), None, None, None]
    d["vitals"]["smoothing_bound"]["parts"]["attn"] = [None] * 4
    d["learned"][0] |= {"mean": None, "low": None, "high": None, "values": [None] * 3}
    text = render([d], format)
    if format == "html":
        assert "NaN or infinity first appeared in the attention branch" in re.sub(r"\s+", " ", text.decode())
        assert "NaN" not in re.search(r'id="data">(.*?)</script>', text.decode(), re.DOTALL)[1]
    assert diagnosis_figures([d])


def test_bare_diagnoses_give_a_page_and_a_figure():
    assert b"No action needed." in render([bare()], "html")
    assert render([bare()], "png").startswith(b"\x89PNG")
    assert set(diagnosis_figures([bare()])) == {"depth"}


def test_several_diagnoses_make_one_report():
    text = page(diagnosis("first"), diagnosis("second", blocks=6))
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1])
    assert [m["name"] for m in data["models"]] == ["first", "second"]
    lines = next(c for c in data["curves"] if c["key"] == "token_cosine")["parts"][0]["by"]
    assert [len(line["mean"]) for line in lines] == [4, 6]
    assert text.count('class="verdict state-collapsing"') == 2
    assert "2 models compared" in text
    # A model that lacks a vital, or all of them, is left out of its charts.
    other = diagnosis("third")
    del other["vitals"]["token_cosine"]
    assert "third" in page(diagnosis("first"), other, bare())


def test_models_of_one_name_are_told_apart():
    assert unique_names(["a", "b", "a"]) == ["a #1", "b", "a #2"]


def test_data_is_embedded_once():
    d = diagnosis()
    text = page(d)
    assert text.count(d["samples"][0]["blocks"]["0"]["maps"]) == 1
    assert text.count(d["samples"][0]["picture"]) == 1


def test_rendering_leaves_the_diagnosis_as_it_was():
    d = Diagnosis.from_dict(diagnosis())
    before = copy.deepcopy(d)
    for format in ("html", "png"):
        reports.render([d], format)
    reports.diagnosis_figures([d, d])
    assert d == before


def test_every_figure_that_the_data_has():
    made = diagnosis_figures([diagnosis("a"), diagnosis("b", blocks=6)])
    assert set(made) == {
        "depth", "similarity", "spectrum", "first_head_spectrum", "rank", "bounds", "jacobian", "maps",
        "first_head_maps", "learned", "learned_by_head", "pca", "norms", "class_attention", "rollout", "trajectories",
    }  # fmt: skip
    assert all(isinstance(figure, Figure) for figure in made.values())
    assert made["bounds"].axes[0].get_yscale() == "log"  # the bound is a thousand times what it bounds
    d = diagnosis()
    d["vitals"]["smoothing_bound"]["formula"] = "ln κ"
    assert diagnosis_figures([d])["bounds"].axes[0].get_yscale() == "linear"  # that is a logarithm already
    assert len(made["spectrum"].axes) == 6 * HEADS
    d = diagnosis()
    del d["vitals"]["smoothing_bound"], d["vitals"]["jacobian_spectrum"]
    assert set(diagnosis_figures([d | {"learned": [], "samples": []}])) == {
        "depth", "similarity", "spectrum", "first_head_spectrum", "rank",
    }  # fmt: skip


def test_spectra_have_a_row_per_block_and_a_column_per_head():
    figure = diagnosis_figures([diagnosis()])["spectrum"]
    assert [ax.get_title() for ax in figure.axes[:HEADS]] == ["head 0", "head 1", "head 2"]
    assert [ax.get_ylabel() for ax in figure.axes[::HEADS]] == [f"block {i}" for i in range(4)]
    d = diagnosis()
    d["vitals"]["attention_spectrum"]["parts"]["curve"][1:3] = [None, None]
    figures = diagnosis_figures([d])
    assert [ax.get_title(loc="left") for ax in figures["first_head_spectrum"].axes] == ["block 0", "block 3"]
    assert len(figures["spectrum"].axes) == 2 * HEADS
    drawn = figures["first_head_spectrum"].axes[0].lines[0].get_ydata()
    assert list(drawn) == pytest.approx([1 / (1 + f) for f in range(9)], rel=1e-3)


def test_learned_values_have_a_panel_per_head():
    figure = diagnosis_figures([diagnosis(), diagnosis("b")])["learned_by_head"]
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["head 0", "head 1", "head 2"]
    omega = figure.axes[0].lines[1]  # after the line at zero
    assert list(omega.get_xdata()) == [0, 1, 2, 3]
    assert list(omega.get_ydata()) == pytest.approx([0.0, 0.1, 0.2, 0.3])
    assert figure.legends[0].get_texts()[0].get_text().startswith("omega, vit_tiny")


def test_whole_maps_of_the_first_head_are_drawn_as_they_are():
    figure = diagnosis_figures([diagnosis("a"), diagnosis("b")])["first_head_maps"]
    assert len(figure.axes) == 2 * 4
    assert figure.axes[0].images[0].get_array().tolist() == np.arange(25).reshape(5, 5).tolist()
    assert [figure.axes[i].get_ylabel() for i in (0, 4)] == ["a", "b"]


def test_pictures_of_tokens_are_drawn_as_they_are():
    d = diagnosis()
    made = diagnosis_figures([d, diagnosis("b")])
    first = d["samples"][0]["pictures"]["0"]
    shown = {name: made[name].axes[1].images[0].get_array() for name in ("pca", "norms", "class_attention")}
    assert shown["pca"].tobytes() == base64.b64decode(first["pca"])
    assert shown["norms"].astype(np.uint8).tobytes() == base64.b64decode(first["norms"])
    heads = np.frombuffer(base64.b64decode(first["class_attention"]), np.uint8).reshape(HEADS, GRID, GRID)
    np.testing.assert_allclose(shown["class_attention"], heads.mean(axis=0))
    assert [ax.get_ylabel() for ax in made["pca"].axes[::5]] == [
        "A  one basis", "A  own basis", "B  one basis", "B  own basis",
    ]  # fmt: skip
    assert (made["norms"].axes[1].get_xlabel(), made["rollout"].axes[1].get_xlabel()) == ("12.5", "2 ×")
    lines = made["trajectories"].axes[0].lines
    np.testing.assert_allclose(lines[2].get_xydata(), d["samples"][0]["trajectories"]["points"][1])


def test_every_picture_has_its_reading_and_a_missing_one_its_reason():
    text = page()
    for picture in PICTURES.values():
        assert html.escape(picture.title) in text and html.escape(picture.reading) in text
        assert "Normal: " in picture.reading
    d = diagnosis()
    for sample in d["samples"]:
        del sample["trajectories"]
        sample["left_out"] = {"rollout": "blocks 0–3: its attention is over windows"}
        for pictures in sample["pictures"].values():
            del pictures["rollout"], pictures["class_attention"]
    made = prose(page(d))
    assert 'id="picture-rollout"' in made and 'id="picture-class_attention"' not in made
    assert 'id="picture-trajectories"' not in made
    assert "rollout" not in diagnosis_figures([d])


def test_a_file_without_pictures_has_no_section_of_them():
    d = diagnosis()
    for sample in d["samples"]:
        del sample["pictures"], sample["trajectories"]
    assert "data-picture" not in prose(page(d)) and "maps" in diagnosis_figures([d])


def test_the_figure_of_depth_shows_the_values():
    figure = diagnosis_figures([diagnosis()])["depth"]
    panel = next(ax for ax in figure.axes if ax.get_title(loc="left") == "token similarity")
    drawn = [list(line.get_ydata()) for line in panel.lines]
    assert [0.2, 0.3, 0.4, 0.5] in [[round(float(v), 6) for v in line] for line in drawn]
    assert [0.5] * 4 in [[float(v) for v in line] for line in drawn]  # the random start


def test_png_is_a_picture_with_something_in_it():
    pixels = imread(io.BytesIO(render([diagnosis()], "png")), format="png")
    assert pixels.shape[0] > 200 and pixels[..., :3].std() > 0.01


def test_a_report_needs_neither_torch_nor_the_rest_of_the_package():
    code = (
        "import sys, types; sys.modules['torch'] = None\n"
        "package = types.ModuleType('unsmooth'); package.__path__ = [sys.argv[1]]; sys.modules['unsmooth'] = package\n"
        "import unsmooth.report.page, unsmooth.report.figures\n"
        "loaded = [m for m in sys.modules if m.startswith('unsmooth.') and not m.startswith('unsmooth.report')]\n"
        "assert set(loaded) <= {'unsmooth.errors', 'unsmooth.utils', 'unsmooth.utils.text'}, loaded\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    import unsmooth

    subprocess.run([sys.executable, "-c", code, next(iter(unsmooth.__path__))], check=True, timeout=120)


@pytest.mark.parametrize(
    ("blocks", "text"),
    [([], ""), ([3], "3"), ([0, 1, 2, 3, 5], "0–3, 5"), ([5, 1, 0, 1], "0–1, 5"), (["2", "10", "11"], "2, 10–11")],
)
def test_blocks_as_spans(blocks, text):
    assert spans(blocks) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.7034, "0.703"), (123.4, "123"), (-0.5, "−0.500"), (1e-5, "1.0·10⁻⁵"), (2e7, "2.0·10⁷"),
     (None, "–"), (math.nan, "–"), (99999.0, "100000")],
)  # fmt: skip
def test_numbers_for_people(value, text):
    assert show(value) == text


@pytest.mark.parametrize(
    ("text", "marked"),
    [("‖X‖_F² / x_{l+1}", "‖X‖<sub>F</sub>² / x<sub>l+1</sub>"),
     ("σ_⌈0.9r⌉, A_:,i", "σ<sub>⌈0.9r⌉</sub>, A<sub>:,i</sub>"),
     ("token_cosine", "token_cosine"), ("a_<b>", "a_&lt;b&gt;")],
)  # fmt: skip
def test_formulas(text, marked):
    assert formula(text) == marked


def test_docstrings_as_paragraphs():
    assert paragraphs("One\ntwo.\n\n    x =  1\n\nThree.") == [
        ("text", "One two."),
        ("formula", "x = 1"),
        ("text", "Three."),
    ]


@pytest.mark.parametrize(
    "state", ["healthy", "untrained", "collapsing", "collapsed", "suspicious", "broken", "unknown", "something new"]
)
def test_every_state_is_said_in_words(state):
    text = page(bare(verdict={"state": state, "text": "So it is.", "blocks": []}))
    assert re.search(rf'<p class="state"><svg.*?</svg> {state}</p>', text, re.DOTALL)


def test_bounds_find_what_was_measured():
    assert bound_pairs(["a", "a.measured", "", "measured", "b", "c.measured"]) == [
        ("a", "a.measured"), ("", "measured"), (None, "b"), (None, "c.measured"),
    ]  # fmt: skip
    assert bound_pairs(["a", "a.linear", "a.measured", "b.linear"]) == [
        ("a", "a.measured"), ("a.linear", "a.measured"), (None, "b.linear"),
    ]  # fmt: skip
