"""Reports of trials: the page and the figures from the JSON alone, whatever it holds or lacks."""

from __future__ import annotations

import copy
import html
import json
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

import unsmooth
from tests.report.test_diagnosis_page import ODD, prose
from tests.support.trial_example import difference, fail, stat, trial, typed
from unsmooth.errors import UnsmoothError
from unsmooth.report.formatting import duration, fixed, setting, thousands
from unsmooth.report.page import breakable
from unsmooth.report.render import figures_of_trial, render_trial
from unsmooth.report.trial_rows import forest, results, scale
from unsmooth.report.trial_table import as_text
from unsmooth.report.trial_values import cost, during, learning

TEN = tuple(f"remedy_{i}(option={'x' * i})" for i in range(10))


def page(value: dict[str, Any] | None = None) -> str:
    return render_trial(typed(trial() if value is None else value), "html").decode()


def said(text: str) -> str:
    """What a reader sees, on one line."""
    plain = re.sub(r"<[^>]+>", " ", prose(text).replace("<wbr>", ""))
    return re.sub(r"\s+", " ", html.unescape(plain)).replace("\u2060", "")


def data_of(text: str) -> dict[str, Any]:
    return json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1])


def hostile() -> dict[str, Any]:
    """Every text of a trial that others may have written."""
    t = trial((ODD, ODD, "plain"))
    t["data"] |= {"name": ODD, "skipped": {ODD: ODD}}
    t |= {"recipe_name": ODD, "recipe": {ODD: ODD, "list": [ODD]}, "verdict": {"text": ODD, "lines": [ODD]}}
    t["made"] |= {"command": ODD, "machine": ODD, "torch": ODD}
    for arm in t["arms"]:
        arm |= {"spec": ODD, "folder": ODD, "robustness": {ODD: next(iter(arm["robustness"].values()))}}
        arm["runs"][0] |= {"folder": ODD}
        arm["diagnosis"]["verdict"] |= {"text": ODD, "state": ODD}
        for epoch in arm["runs"][0]["epochs"]:
            epoch["vitals"] = {ODD: [0.5]}
    t["arms"][1]["difference"]["text"] = ODD
    fail(t["arms"][2], 0, 1, 2, why=ODD)
    return t


def test_a_page_has_every_section_and_needs_nothing_else():
    text = page()
    sections = ("verdict", "differences", "accuracy", "learning", "depth", "during", "robustness", "cost", "repeat",
                "meaning", "definitions")  # fmt: skip
    for section in sections:
        assert f'id="{section}"' in text and f'href="#{section}"' in text
    targets = set(re.findall(r'href="#([^"]+)"', prose(text)))
    assert targets <= set(re.findall(r'id="([^"]+)"', text))
    assert re.findall(r"""(?:src|href)\s*=\s*["']?(?!#|data:)[^"'\s>]+""", prose(text)) == []
    style = text.split("</style>")[0]
    assert "@import" not in style and "url(" not in style
    assert "default-src &#39;none&#39;" in text


def test_a_page_says_what_the_trial_says():
    text = said(page())
    for words in (
        "feat_scale is better than plain on digits.", "attn_scale too.", "recipe small, 6 epochs, batch 64",
        "1,437 training and 360 validation images", "in 10 classes", "+2.1 points (+0.6 to +3.6 points)",
        "+0.4 points (−1.1 to +1.9 points), no difference shown", "95 % intervals",
        "73.7 ± 0.6 %", "73.1, 73.7, 74.3", "13,472 +72",
        "MFLOPs", "0.97 (0.96–0.98)", "3,012 images/s", "Collapsing", "Tokens collapse in blocks 2–3.",
        "occlusion 0.25", "unsmooth compare digits plain attn_scale", "crop_ratio 0.75, 1.3333", "min_lr 1e-05",
        "compile false", "torch 2.7", "Python 3.11.9", "2 threads", "1 h 2 min", "attn_scale/seed1", "1 min 15 s",
        "1 image: cannot be read", "The final epoch, not the best one", "new seeds and new images", "3 comparisons",
    ):  # fmt: skip
        assert words.lower() in text.lower(), words


def test_no_number_has_more_digits_than_anyone_reads():
    assert re.findall(r"\d+\.\d{5,}", said(page())) == []


@pytest.mark.parametrize("make", [hostile, lambda: trial(TEN)])
def test_nothing_that_others_wrote_becomes_markup(make):
    text = page(make())
    assert "<img" not in prose(text)
    assert len(re.findall(r"<script", text)) == len(re.findall(r"</script>", text)) == 3
    assert not set(re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1]) & set("<>&\u2028\u2029")


def test_names_are_shown_as_they_are():
    assert ODD.replace("\u2028", "").split()[0] in said(page(hostile()))
    assert "{{7*7}}" in said(page(hostile()))
    assert breakable("a_b(<i>)") == "a_<wbr>b(<wbr>&lt;i&gt;)"


@pytest.mark.parametrize("format", ["png", "svg", "pdf"])
def test_figures_are_files_of_their_format(format):
    content = render_trial(typed(trial()), format)
    assert content.startswith({"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[format])
    assert content == render_trial(typed(trial()), format)


def test_what_is_no_trial_is_refused():
    with pytest.raises(UnsmoothError, match=r"html.*pdf.*png.*svg"):
        render_trial(typed(trial()), "docx")
    with pytest.raises(UnsmoothError, match="is not a trial"):
        typed({"kind": "diagnosis"})
    for function in (lambda t: render_trial(t, "html"), figures_of_trial):
        with pytest.raises(UnsmoothError, match="at least one arm"):
            function(typed(trial(arms=[])))


def test_a_run_that_failed_is_named_and_counts_nowhere():
    t = trial()
    fail(t["arms"][1], 1)
    text = said(page(t))
    assert "1 of 3 runs failed (seed 1: NaN in block 3); values are from the other runs" in text
    assert "75.2, failed, 76.4" in text
    arm = learning(typed(t))[0].by[1]
    ends = [run["epochs"][-1]["val_top1"] for run in t["arms"][1]["runs"] if not run["failed"]]
    assert arm.mean[-1] == pytest.approx(100 * sum(ends) / 2, rel=1e-4)
    assert (arm.low[-1], arm.high[-1]) == pytest.approx((100 * min(ends), 100 * max(ends)), rel=1e-4)
    assert [run.failed for run in arm.runs] == [False, True, False]
    assert arm.runs[1].values[2:] == [None] * 4  # it stopped after two epochs


def test_an_arm_that_failed_in_every_seed_is_said_to_have():
    t = trial()
    fail(t["arms"][2], 0, 1, 2)
    text = said(page(t))
    assert "failed with all 3 seeds: NaN in block 3" in text
    assert "3 of 3 runs failed" in text and "not diagnosed" in text
    assert results(typed(t))[2].top1.text == "failed"
    assert learning(typed(t))[0].by[2].mean == [None, None]
    assert cost(typed(t)).accuracy[2] is None
    assert set(figures_of_trial(typed(t))) == {"differences", "curves", "depth", "cost"}


def test_without_the_first_arm_there_is_nothing_to_compare_with():
    t = trial()
    fail(t["arms"][0], 0, 1, 2)
    for arm in t["arms"][1:]:
        arm["difference"] = None
    assert said(page(t)).count("plain failed with all 3 seeds") == 3
    assert not forest(typed(t)).any
    t = trial()
    t["arms"][1]["difference"] = None
    assert "no seed finished by both attn_scale and plain" in said(page(t))


def test_one_seed_has_no_spread():
    text = said(page(trial(seeds=(7,))))
    assert "73.1 %" in text and "73.1 ±" not in text
    assert "With one seed it covers the variation over images only" in text
    assert "1 seed (7) per model" in text


def test_one_arm_is_a_report_too():
    text = said(page(trial(("plain",))))
    assert "73.7 ± 0.6 %" in text and "comparisons" not in text
    assert "differences" in figures_of_trial(typed(trial(("plain",))))


@pytest.mark.parametrize("missing", [
    {"top5": stat([None] * 3)}, {"flops": None}, {"training": None, "inference": None}, {"robustness": {}},
    {"diagnosis": None}, {"runs": []}, {"parameters": None},
])  # fmt: skip
def test_optional_parts_may_be_missing(missing):
    for which in (slice(1, 2), slice(None)):
        t = trial()
        for arm in t["arms"][which]:
            arm |= copy.deepcopy(missing)
        assert "feat_scale is better" in said(page(t))
        assert "differences" in figures_of_trial(typed(t))


def test_a_section_without_data_says_so_or_stays_away():
    t = trial()
    for arm in t["arms"]:
        arm |= {"robustness": {}, "diagnosis": None, "inference": None, "training": None, "flops": None}
        arm |= {"parameters": None}
        for run in arm["runs"]:
            run["epochs"] = []
    text = page(t)
    for section in ("robustness", "during", "definitions"):
        assert f'id="{section}"' not in text and f"#{section}" not in prose(text)
    for words in ("No run finished an epoch.", "No final model was diagnosed.",
                  "No model has both an accuracy and a cost."):  # fmt: skip
        assert words in said(text)
    assert set(figures_of_trial(typed(t))) == {"differences"}


def test_what_is_not_a_number_breaks_nothing():
    t = trial()
    t["arms"][1]["runs"][0]["epochs"][0] |= {"val_loss": None, "val_top1": math.nan, "vitals": {"token_cosine": [None]}}
    t["arms"][1]["loss"]["mean"] = None
    t["arms"][2]["difference"]["by_seed"] = [None, 0.01, 0.02]
    assert "NaN" not in json.dumps(data_of(page(t)))
    for figure in figures_of_trial(typed(t)).values():
        figure.canvas.draw()
    t["arms"][1]["loss"]["mean"] = math.nan
    with pytest.raises(UnsmoothError, match=r"not a valid trial: arms\.1\.loss\.mean"):
        typed(t)


def test_ten_arms_are_told_apart():
    t = trial(TEN)
    text = page(t)
    swatches = re.findall(r'<svg class="swatch (c\d)"[^>]*><path class="(dash\d)"', text)
    assert len(set(swatches)) == 10
    assert [m["letter"] for m in data_of(text)["models"]] == list("ABCDEFGHIJ")
    lines = figures_of_trial(typed(t))["depth"].axes[0].lines
    styles = {(line.get_color(), str(line.get_linestyle()), str(line._dash_pattern)) for line in lines[:19:2]}
    assert len(styles) == 10


def test_the_host_is_said_once_where_names_say_the_rest():
    t = trial()
    assert said(page(t)).count("vit_tiny_patch16_224(") == 1
    t["arms"][1]["spec"] = "deit_tiny_patch16_224"
    assert said(page(t)).count("vit_tiny_patch16_224(") == 3


def test_arms_of_one_name_are_told_apart():
    assert [m["name"] for m in data_of(page(trial(("plain", "a", "a"))))["models"]] == ["plain", "a #1", "a #2"]


def test_arms_keep_their_colour_where_one_has_no_diagnosis():
    t = trial()
    t["arms"][1]["diagnosis"] = None
    lines = next(c for c in data_of(page(t))["curves"] if c["key"] == "token_cosine")["parts"][0]["by"]
    assert [line is None for line in lines] == [False, True, False, False]


def test_places_in_the_forest_are_in_proportion():
    t = trial()
    t["arms"][1]["difference"] = difference(0.02, 0.01, 3)
    t["arms"][2]["difference"] = difference(-0.03, 0.04, 3)
    made = forest(typed(t))
    row, other = made.rows[1].difference, made.rows[2].difference
    one = row.mean - row.low  # so wide is one point
    assert row.mean - made.zero == pytest.approx(2 * one, abs=0.03)
    assert made.zero - other.mean == pytest.approx(3 * one, abs=0.03)
    assert other.low < made.zero < other.high and not other.shown and row.shown
    every = [v for d in (row, other) for v in (d.low, d.high, *(s.at for s in d.seeds))]
    assert min(every) >= made.ticks[0].at and max(every) <= made.ticks[-1].at
    assert row.seeds[1].text == "seed 1: +2.0 points"


@pytest.mark.parametrize(("low", "high"), [(-0.3, 1.7), (0, 0), (-40, 3), (0, 0.004)])
def test_a_scale_holds_its_range(low, high):
    ticks = scale(low, high)
    assert ticks[0] <= low <= high <= ticks[-1]
    assert 3 <= len(ticks) <= 8


def test_vitals_of_training_are_means_over_seeds():
    t = trial()
    t["arms"][0]["runs"][1]["epochs"][0]["vitals"]["token_cosine"] = [0.9] * 4
    actual = next(v for v in during(typed(t)) if v.key == "token_cosine")
    assert actual.title == "token similarity"
    arm, runs = actual.by[0], t["arms"][0]["runs"]
    assert arm.epochs == [1, 3, 5, 6] and arm.blocks == 4
    values = [run["epochs"][0]["vitals"]["token_cosine"][2] for run in runs]
    assert arm.mean[0][2] == pytest.approx(sum(values) / 3, rel=1e-4)
    assert (arm.low[0][2], arm.high[0][2]) == pytest.approx((min(values), max(values)), rel=1e-4)
    assert next(v for v in during(typed(t)) if v.key == "effective_rank").by[0].mean[0][0] is None


def test_figures_show_the_values():
    made = figures_of_trial(typed(trial()))
    assert set(made) == {"differences", "curves", "depth", "cost"}
    assert all(isinstance(figure, Figure) for figure in made.values())
    ax = made["differences"].axes[0]
    assert any(line.get_xdata().tolist() == pytest.approx([2.1]) for line in ax.lines if len(line.get_xdata()) == 1)
    drawn = [ax.get_title(loc="left") for ax in made["curves"].axes]
    assert drawn == ["Validation top-1, %", "Validation loss", "Training loss"]
    ends = sorted(float(line.get_ydata()[-1]) for line in made["curves"].axes[0].lines)
    assert ends[0] == pytest.approx(learning(typed(trial()))[0].by[0].mean[-1])


def test_no_name_breaks_a_figure():
    for figure in figures_of_trial(typed(hostile())).values():
        figure.set_dpi(30)
        figure.canvas.draw()


def test_rendering_leaves_the_trial_as_it_was():
    t = typed(trial())
    before = copy.deepcopy(t)
    for format in ("html", "png"):
        render_trial(t, format)
    figures_of_trial(t)
    assert t == before


def test_a_page_holds_no_sample_images():
    t = trial()
    assert t["arms"][0]["diagnosis"]["samples"][0]["picture"] not in page(t)


def test_a_report_needs_neither_torch_nor_the_rest_of_the_package():
    code = (
        "import sys, types; sys.modules['torch'] = None\n"
        "package = types.ModuleType('unsmooth'); package.__path__ = [sys.argv[1]]; sys.modules['unsmooth'] = package\n"
        "import unsmooth.report.trial_page, unsmooth.report.trial_figures\n"
        "loaded = [m for m in sys.modules if m.startswith('unsmooth.') and not m.startswith('unsmooth.report')]\n"
        "assert set(loaded) <= {'unsmooth.errors', 'unsmooth.utils', 'unsmooth.utils.text'}, loaded\n"
    )
    subprocess.run([sys.executable, "-c", code, next(iter(unsmooth.__path__))], check=True, timeout=120)


@pytest.mark.parametrize(
    ("text", "expected"),
    [(duration(4.21), "4.2 s"), (duration(59.96), "1 min 0 s"), (duration(75.25), "1 min 15 s"),
     (duration(3725), "1 h 2 min"), (duration(None), "–"), (thousands(1234567), "1,234,567"), (thousands(None), "–"),
     (fixed(-0.25, 1), "−0.2"), (fixed(1.26, 1, sign=True), "+1.3"), (fixed(math.nan, 1), "–"),
     (setting([0.75, 4 / 3]), "0.75, 1.3333"), (setting(True), "true"), (setting(""), "–"), (setting(3), "3")],
)  # fmt: skip
def test_numbers_for_people(text, expected):
    assert text == expected


def test_shading_says_whose_findings_it_marks():
    text = said(page())
    assert "in the colour of a model, mark the blocks of that model's findings" in text
    assert re.search(r"B blocks 2–3", text)


def test_the_page_and_the_guide_agree_on_the_interval():
    guide = re.sub(r"\s+", " ", (Path(unsmooth.__file__).parent.parent / "docs/guides/comparing.md").read_text())
    for words in (
        "two-way analysis of variance", "Hillis (Statistics in Medicine 2007)",
        "never narrower than the t interval over seeds",
    ):  # fmt: skip
        assert words in guide and words in said(page()), words


@pytest.mark.parametrize("long", ["no_skip+augmented_shortcut", "augmented_shortcut(branch=attn, paths=4)"])
def test_the_table_has_80_columns_and_whole_names(long):
    value = typed(trial(("plain", "attn_scale", long)))
    text = as_text(value, 80)
    assert max(map(len, text.splitlines())) <= 80 and "…" not in text
    for name in long.split("+"):
        assert name in text
    for arm in value.arms[1:]:  # the difference is printed whether or not its interval covers zero
        mean = f"{100 * arm.difference.mean:+.1f}".replace("-", "−")
        assert f"{mean} not shown" in text if not arm.difference.shown else mean in text
    assert " not shown" in text and "params: parameters" in text.replace("\n", " ")


def test_figures_have_no_offset_and_one_style():
    from unsmooth.report import panels

    assert panels.STYLE["axes.formatter.useoffset"] is False and panels.STYLE["figure.dpi"] == 300
    figure = figures_of_trial(typed(trial()))["curves"]
    assert figure.dpi == 300
    assert all(not ax.yaxis.get_major_formatter().get_useOffset() for ax in figure.axes)
    assert all(ax.get_xlabel() == "epoch" for ax in figure.axes)
