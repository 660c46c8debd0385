"""The report in a browser: opened from a file, it logs no errors, fetches nothing, and its map and tables work."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

import nearkin
from nearkin.experiments.run_report import write_report

pytest.importorskip("playwright")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium here")
PAD = 24  # padding of the map in run_map.js


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, list[str], list[str]]]:
    """The page of a small run, its console errors, and its requests."""
    from playwright.sync_api import sync_playwright

    folder = tmp_path_factory.mktemp("run") / "glyphs"
    settings: dict[str, Any] = {"epochs": 1, "batch_size": 16, "dim": 8, "device": "cpu"}
    nearkin.train("glyphs:classes=12,per_class=8,size=16", out=folder, **settings)
    report = write_report(folder, figures=False)
    complaints: list[str] = []
    asked: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1000, "height": 900})
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(report.as_uri())
        yield page, complaints, asked
        browser.close()


def point(page: Any, item: int) -> tuple[float, float]:
    """The position of an item of the full map on the screen."""
    data = json.loads(page.locator("#map-data").text_content())
    canvas = page.locator("#map > canvas")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    span = box["width"] - 2 * PAD
    return box["x"] + PAD + data["x"][item] * span, box["y"] + PAD + data["y"][item] * span


def test_it_opens_quietly_and_fetches_nothing(opened: tuple[Any, list[str], list[str]]) -> None:
    page, complaints, asked = opened
    page.wait_for_timeout(200)
    assert complaints == []
    assert [address.partition(":")[0] for address in asked if not address.startswith("data:")] == ["file"]
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_hovering_an_item_shows_it(opened: tuple[Any, list[str], list[str]]) -> None:
    page, complaints, _ = opened
    card = page.locator("#map .card")
    assert not card.is_visible()
    page.mouse.move(*point(page, 7))
    data = json.loads(page.locator("#map-data").text_content())
    assert card.is_visible()
    assert card.locator("figcaption").first.text_content() == data["names"][data["label"][7]]
    ink = "canvas => new Set(canvas.getContext('2d').getImageData(0, 0, 96, 96).data).size"
    assert card.locator("canvas").first.evaluate(ink) > 10  # a glyph has many grey levels, an empty card none
    page.mouse.move(5, 5)
    assert not card.is_visible() and complaints == []


def test_the_wheel_zooms_and_the_button_shows_the_whole(opened: tuple[Any, list[str], list[str]]) -> None:
    page, complaints, _ = opened
    canvas = page.locator("#map > canvas")
    look = "canvas => canvas.toDataURL()"
    x, y = point(page, 3)
    page.mouse.move(5, 5)
    page.wait_for_timeout(100)
    whole = canvas.evaluate(look)
    page.mouse.move(x, y)
    page.mouse.wheel(0, -600)
    page.mouse.move(5, 5)
    page.wait_for_timeout(100)
    assert canvas.evaluate(look) != whole
    page.locator("#map-whole").click()
    page.mouse.move(5, 5)
    page.wait_for_timeout(100)
    assert canvas.evaluate(look) == whole and complaints == []


def test_a_filter_counts_the_classes_it_leaves(opened: tuple[Any, list[str], list[str]]) -> None:
    page, _, _ = opened
    name = json.loads(page.locator("#map-data").text_content())["names"][0]
    page.locator("#map-filter").fill(name)
    assert page.locator("#map-count").text_content() == "1 of 6 classes"
    page.locator("#map-filter").fill("")


def test_a_click_on_a_heading_sorts(opened: tuple[Any, list[str], list[str]]) -> None:
    page, complaints, _ = opened
    table = page.locator("table.sortable")
    for heading, column in (("Recall@1", 3), ("MAP@R", 4)):
        for reverse in (False, True):
            table.get_by_role("button", name=heading).click()
            shown = [float(text) for text in table.locator(f"tbody td:nth-child({column})").all_text_contents()]
            assert shown == sorted(shown, reverse=reverse)
    names = []
    for _ in range(2):
        table.get_by_role("button", name="class").click()
        names.append(table.locator("tbody td:first-child").all_text_contents())
    assert names[0] == names[1][::-1] and len(set(names[0])) == 6
    assert complaints == []
