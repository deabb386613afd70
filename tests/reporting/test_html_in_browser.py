"""The report in headless Chromium: sorting, phone, dark, print, and nothing but the file itself is asked for."""

import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from builders import make_record, make_scores
from mlpip_bench.records.record import Record
from mlpip_bench.reporting.html import to_html

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ARGUMENTS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
)
PHONE = {"width": 360, "height": 740}
MEANS = {"fomaml": 1.5, "cnp": 100.0, "cvae": -2.5, "anil": 1.25}


def record(method: str, mean: float, bench: str, source: str) -> Record:
    return make_record(
        make_scores((mean - 0.01, mean + 0.01), "nll"),
        make_scores((mean - 0.02, mean), "nll", model="last"),
        bench=bench, method=method, protocol="nll", source=source, fingerprint="f" * 64, iterations=10,
        settings={"a_long_name_of_a_setting": "x" * 80}, training={"iterations": 10, "seconds": 1.0},
        environment={"mlpip_bench": "0.1.0", "processor": "a processor", "threads": 1},
    )  # fmt: skip


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    benches = ("omni5w1s", "omni5w5s", "omni20w1s", "omni20w5s", "mini5w1s", "mini5w5s")
    records = [
        record(*of, bench, "procedural" if "mini" in bench else "real") for bench in benches for of in MEANS.items()
    ]
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(to_html({"a-folder-with-a-name-that-is-long-and-has-no-space-in-it": records}))
    return path


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        reason = "no chromium is installed: apt-get install chromium"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield running
        running.close()


@pytest.fixture
def opened(browser: Browser, page_file: Path) -> Iterator[Callable[..., Page]]:
    """Opens the report; at the end, nothing was complained of and nothing but the file was asked for."""
    complaints: list[str] = []
    asked: list[str] = []
    pages = []

    def open_page(**options: Any) -> Page:
        page = browser.new_page(**options)
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(page_file.as_uri(), wait_until="load")
        pages.append(page)
        return page

    yield open_page
    for page in pages:
        page.close()
    assert complaints == []
    assert [url for url in asked if not url.startswith("data:")] == [page_file.as_uri()] * len(pages)


def luminance(color: str) -> float:
    """Relative luminance of ``rgb(...)``, as WCAG 2 defines it."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", color)[:3]]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def style_of(page: Page, selector: str, name: str) -> str:
    found: str = page.eval_on_selector(selector, f"e => getComputedStyle(e).{name}")
    return found


def names(page: Page, body: int = 0) -> list[str]:
    """Names of the rows of the first table, in the order shown."""
    found: list[str] = page.locator("table").first.locator("tbody").nth(body).locator(".name").all_inner_texts()
    return found


def test_a_column_sorts_by_number_both_ways_and_by_keyboard(opened):
    page = opened()
    ours = [name for name in names(page) if "stand-in" not in name]
    published = names(page, 2)
    assert set(ours) == set(MEANS)
    head = page.locator("table").first.locator("thead th").nth(1)
    assert head.inner_text().startswith("omni5w1s")
    head.locator("button").click()
    ascending = sorted(MEANS, key=lambda name: MEANS[name])
    assert names(page)[:4] == ascending
    assert all("stand-in" in name for name in names(page)[4:])  # which have no number in this column
    assert head.get_attribute("aria-sort") == "ascending"
    assert names(page, 2) != published
    assert set(names(page, 2)) == set(published)  # which stay separate
    head.locator("button").focus()
    page.keyboard.press("Enter")
    assert names(page)[:4] == ascending[::-1]
    assert head.get_attribute("aria-sort") == "descending"
    assert page.locator("table").first.locator("th[aria-sort]").count() == 1
    head.locator("button").click()  # the third is the way back
    assert [name for name in names(page) if "stand-in" not in name] == ours
    assert head.get_attribute("aria-sort") is None
    page.locator("table").first.locator("thead button").first.click()
    assert names(page) == sorted(names(page))


def test_the_first_click_on_a_column_that_is_better_high_has_the_best_first(browser, tmp_path):
    means = {"fomaml": 0.5, "cnp": 0.9, "anil": 0.7}
    path = tmp_path / "accuracy.html"
    records = [make_record(make_scores((mean - 0.01, mean + 0.01)), method=method) for method, mean in means.items()]
    path.write_text(to_html({"runs": records}))
    page = browser.new_page()
    page.goto(path.as_uri())
    page.locator("table").first.locator("thead th").nth(1).locator("button").click()
    assert names(page) == ["cnp", "anil", "fomaml"]
    page.close()


@pytest.mark.parametrize("viewport", [{"width": 1440, "height": 900}, PHONE])
def test_the_first_screen_says_who_leads_and_whether_that_is_decided(opened, viewport):
    page = opened(viewport=viewport)
    for selector in (".answers b", ".answers .decided", ".answers .measured"):
        box = page.locator(selector).first.bounding_box()
        assert box["y"] + box["height"] <= viewport["height"], selector


@pytest.mark.parametrize("open_details", [False, True])
def test_a_phone_scrolls_tables_and_never_the_page(opened, open_details):
    page = opened(viewport=PHONE)
    if open_details:
        page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    boxes = "[...document.querySelectorAll('.scroll')]"
    assert page.evaluate(f"{boxes}.some(box => box.scrollWidth > box.clientWidth)")
    page.evaluate(f"{boxes}[0].scrollLeft = 200")
    assert page.locator(".name").first.bounding_box()["x"] >= 0  # how a number was measured stays in sight


def test_light_and_dark_differ_and_both_can_be_read(opened):
    backgrounds = []
    for scheme in ("light", "dark"):
        page = opened(color_scheme=scheme)
        backgrounds.append(style_of(page, "body", "backgroundColor"))
        for selector in ("body", ".measured", ".interval", ".notes", "nav a", "nav li li a", ".unit", "summary"):
            assert contrast(style_of(page, selector, "color"), backgrounds[-1]) >= 4.5, (scheme, selector)
        warning = style_of(page, ".warning", "color"), style_of(page, ".warning", "backgroundColor")
        assert contrast(*warning) >= 4.5
        assert luminance(style_of(page, "figure img", "backgroundColor")) == 1  # figures have dark ink
    assert luminance(backgrounds[0]) > 0.9
    assert luminance(backgrounds[1]) < 0.1


def test_print_is_light_and_cuts_no_table(opened, tmp_path):
    page = opened(color_scheme="dark", viewport={"width": 700, "height": 1000})
    page.emulate_media(media="print", color_scheme="dark")
    assert luminance(style_of(page, "body", "backgroundColor")) == 1
    assert luminance(style_of(page, "body", "color")) == 0
    assert style_of(page, ".row-name", "position") == "static"
    assert style_of(page, "nav", "position") == "static"
    assert (
        style_of(page, "th button", "display") == "contents"
    )  # with a box in it, no head is repeated on the next page
    assert page.evaluate("[...document.querySelectorAll('.scroll')].every(b => b.scrollWidth <= innerWidth)")
    page.pdf(path=tmp_path / "report.pdf")
    assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF-")
