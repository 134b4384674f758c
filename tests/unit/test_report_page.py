"""The report's page: it needs nothing else, escapes what devices are called, and says what it has not."""

import re
from html.parser import HTMLParser

import pytest

from streaming.report.lake import MOST_SIGNALS, bucket_s, rates, stacked, worst_of
from streaming.report.page import Figure, Finding, Report, render
from streaming.report.plots import Bars, Histogram, Lines, Plot, Signal
from tests.unit.report_sample import BEGIN_S, full_report

_VOID = {"meta", "br", "hr", "img", "link", "input"}


class _Reader(HTMLParser):
    """Elements, ids and text of a page; fails on one that is not closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes something else"

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def read(page: str) -> _Reader:
    reader = _Reader()
    reader.feed(page)
    reader.close()
    assert reader.open == []
    return reader


@pytest.fixture(scope="module")
def page() -> str:
    return render(full_report())


def test_the_page_refers_to_nothing_outside_and_runs_nothing(page: str) -> None:
    reader = read(page)
    assert not {"script", "link", "img", "iframe", "object", "image"} & {tag for tag, _ in reader.elements}
    addresses = set(re.findall(r"https?://[^\"'<> ]+", page))
    assert addresses <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}, "names of XML, not fetched"
    for _, attributes in reader.elements:
        for name, value in attributes.items():
            assert not name.startswith("on")
            if name in {"href", "xlink:href", "src"}:
                assert value.startswith("#")
    assert "@import" not in page
    assert set(re.findall(r"url\((.)", page)) <= {"#"}


def test_ids_are_unique_and_every_reference_has_one(page: str) -> None:
    reader = read(page)
    ids = [value for _, attributes in reader.elements if (value := attributes.get("id"))]
    assert len(ids) == len(set(ids))
    wanted = {value[1:] for _, it in reader.elements if (value := it.get("xlink:href"))}
    wanted |= set(re.findall(r"url\(#([^)]+)\)", page))
    assert wanted
    assert wanted <= set(ids)


def test_what_devices_are_called_is_text_and_no_markup(page: str) -> None:
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page


def test_every_plot_has_a_title_axis_labels_with_units_and_what_to_look_for(page: str) -> None:
    plots = [figure for figure in page.split("<figure>")[1:] if "<svg" in figure]
    assert len(plots) == 7
    for plot in plots:
        caption = plot.split("</figcaption>")[0]
        assert re.search(r"<h3>[^<]+</h3><p>[^<]{20,}</p>", caption), caption
        assert 'role="img" aria-label="' in plot
        labels = re.findall(r">([^<]+)</text>", plot)
        assert "time (UTC)" in labels or {"readings", "received after"} <= set(labels), labels
    assert ">temperature (°C)</text>" in page
    assert ">readings/s</text>" in page


def test_colours_are_the_pages_own_in_light_dark_and_print(page: str) -> None:
    assert set(re.findall(r"#[0-9a-f]{6}\b", "".join(re.findall(r"<svg.*?</svg>", page, re.DOTALL)))) == set()
    used = set(re.findall(r"var\(--(\w+)\)", page))
    light, dark, printed = (set(re.findall(r"--(\w+):", block.split("}")[0])) for block in page.split(":root {")[1:])
    assert used <= light == dark
    assert printed <= light, "paper has light colours: the dark ones are a screen's alone"
    assert "@media screen and (prefers-color-scheme: dark)" in page
    assert "@media print" in page


def test_the_page_stays_small(page: str) -> None:
    assert len(page) < 600_000


def test_numbers_are_aligned_and_cut_tables_say_how_much_is_left_out(page: str) -> None:
    assert '<td class="number">12,000</td>' in page
    assert "3 of 133 rows." in page


def test_a_report_without_anything_says_so_in_every_section() -> None:
    absent = {"signals.anomalies": "There is no table anomalies yet: gateway stream anomalies writes it."}
    reader = read(render(Report(BEGIN_S, "no readings. Read from the lake /data", absent=absent)))
    text = " ".join(reader.texts)
    assert "no readings" in text
    assert text.count("Nothing to show.") == 4
    assert "There is no table anomalies yet" in text
    assert reader.named("svg") == []


@pytest.mark.parametrize("plot", [
    Lines({"one": [(BEGIN_S, 3.0)]}, "readings/s"),
    Lines({"none": []}, "readings/s"),
    Lines({"$\\no$": [(BEGIN_S, 3.0)], "$x$": [(BEGIN_S, 3.0)]}, "readings/s"),
    Bars(1.0, {"not_json": [(BEGIN_S, 1.0)]}, "records"),
    Histogram({"under 1 s": 0}, "readings", "received after"),
    Signal("flow", [], []),
    Signal("flow", [(BEGIN_S, -1.79e308, 0.0, 1.79e308)], []),
], ids=lambda plot: type(plot).__name__)  # fmt: skip
def test_very_little_data_is_drawn_without_a_warning(plot: Plot) -> None:
    read(render(Report(BEGIN_S, "here", parts={"lost.one": Figure("one", "little", plot)})))


def test_findings_alone_are_a_page() -> None:
    read(render(Report(BEGIN_S, "here", findings=[Finding("readings", "0")])))


def test_a_type_with_an_underscore_first_is_in_the_legend() -> None:
    two = {"_a": [(BEGIN_S, 3.0)], "b": [(BEGIN_S, 3.0)]}
    figures = (Figure("one", "two", plot) for plot in (Lines(two, "readings/s"), Bars(60.0, two, "records")))
    page = render(Report(BEGIN_S, "here", parts={f"lost.{number}": it for number, it in enumerate(figures)}))
    assert [page.count(f"{name}</text>") for name in ("_a", "b")] == [2, 2]


# ── what is put into it ──────────────────────────────────────────────────────────────────────────────────────────────


def test_reasons_without_a_colour_are_put_together() -> None:
    stacks = stacked([(f"reason{number}", 0.0, 100 - number) for number in range(12)])
    assert list(stacks) == [*(f"reason{number}" for number in range(7)), "others"]
    assert stacks["others"] == [(0.0, sum(100 - number for number in range(7, 12)))]


def test_one_signal_does_not_take_the_whole_page() -> None:
    alerts = {(f"pump-{number:02}", "temperature"): 50 - number for number in range(20)}
    alerts |= {(f"room-{number:02}", "humidity"): 2 for number in range(20)}
    chosen = worst_of(alerts)
    assert len(chosen) == MOST_SIGNALS
    assert chosen[0] == ("pump-00", "temperature")
    assert sum(signal == "humidity" for _, signal in chosen) == MOST_SIGNALS // 3
    assert len(worst_of({("a", "x"): 1})) == 1


def test_stretches_of_time_have_round_lengths() -> None:
    assert [bucket_s(span, 60) for span in (0, 60, 61, 86_400, 30 * 86_400)] == [1, 1, 2, 1800, 43_200]


def test_a_stretch_that_was_only_begun_is_no_rate() -> None:
    counts = {"pump": [(0.0, 1.0), (10.0, 50.0), (30.0, 50.0), (40.0, 7.0)]}
    assert rates(counts, 10.0, 9.0, 42.0) == {"pump": [(10.0, 5.0), (20.0, 0.0), (30.0, 5.0)]}
    assert rates(counts, 10.0, 0.0, 42.0)["pump"][0] == (0.0, 0.1), "a whole one"
    assert rates({"pump": [(0.0, 9.0)]}, 10.0, 3.0, 7.0) == {"pump": [(0.0, 0.9)]}, "there is no other"
