"""The page in a real browser: search, browse, go back, filter, use the map."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from serve.colours import PER_LABEL, MeanColour, colour_of, image_bytes, make_gallery
from serve.running import running

from nearkin.search.gallery import Gallery
from nearkin.serve.app import make_app

pytest.importorskip("playwright.sync_api")
from playwright.sync_api import BrowserContext, Page, expect, sync_playwright

CHROMIUM = Path("/usr/bin/chromium")
pytestmark = pytest.mark.skipif(not CHROMIUM.exists(), reason="needs chromium")
expect.set_options(timeout=15_000)


@pytest.fixture(scope="module")
def gallery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gallery]:
    gallery = make_gallery(tmp_path_factory.mktemp("page"), MeanColour())
    yield gallery
    gallery.close()


@pytest.fixture(scope="module")
def address(gallery: Gallery) -> Iterator[str]:
    with running(make_app(gallery, max_upload_mb=1)) as (host, port):
        yield f"http://{host}:{port}/"


@pytest.fixture(scope="module")
def window() -> Iterator[BrowserContext]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser.new_context(viewport={"width": 1000, "height": 800})
        browser.close()


@pytest.fixture
def page(window: BrowserContext, address: str) -> Iterator[Page]:
    """The open page. At the end, no request may have left the origin, and the console must be empty."""
    page = window.new_page()
    requests: list[str] = []
    complaints: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(address)
    expect(page.locator("#grid li")).to_have_count(24)
    yield page
    page.close()
    assert [url for url in requests if not url.startswith((address, f"blob:{address}"))] == []
    assert [words for words in complaints if not re.search("404 .Not Found|503", words)] == []


def upload(page: Page, colour: tuple[int, int, int]) -> None:
    page.set_input_files("#file", {"name": "mine.png", "mimeType": "image/png", "buffer": image_bytes(colour)})


def first_label(page: Page, label: str) -> None:
    expect(page.locator("#grid .label").first).to_have_text(label)


def test_upload_then_click_a_neighbour_then_go_back(page: Page) -> None:
    upload(page, colour_of("green", 3))
    expect(page.locator("h1")).to_have_text("24 nearest to your image")
    first_label(page, "green")
    expect(page.locator("#grid .distance").first).to_have_text("0.000")
    expect(page.locator("#query")).to_be_visible()

    page.locator("#grid a", has_text="blue").first.click()
    expect(page.locator("h1")).to_contain_text("23 nearest to folder2/")
    first_label(page, "<b>blue</b>")  # as text, not as HTML
    assert page.locator("#grid b, #grid i").count() == 0

    page.go_back()
    expect(page.locator("h1")).to_have_text("24 nearest to your image")
    first_label(page, "green")


def test_a_label_and_a_number_narrow_the_search(page: Page) -> None:
    page.goto(f"{page.url}#item=1")
    expect(page.locator("h1")).to_contain_text("23 nearest")
    page.fill("#label", "green")
    page.keyboard.press("Enter")
    expect(page.locator("#grid li")).to_have_count(PER_LABEL)
    assert set(page.locator("#grid .label").all_text_contents()) == {"green"}
    page.focus("#k")
    page.keyboard.press("Home")
    expect(page.locator("#grid li")).to_have_count(1)
    page.fill("#label", "")
    page.keyboard.press("Enter")
    first_label(page, "red")


def test_the_page_works_with_the_keyboard_alone(page: Page) -> None:
    page.locator("#grid a").first.focus()
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_contain_text("23 nearest")
    expect(page.locator("h1")).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.locator("#grid a").first).to_be_focused()


def test_a_point_of_the_map_can_be_searched_with_mouse_or_keyboard(page: Page) -> None:
    page.click("#to-map")
    expect(page.locator("#map")).to_have_attribute("aria-busy", "false", timeout=30_000)
    points = page.evaluate("fetch('/api/map').then((answer) => answer.json())")["points"]
    leftmost = min(points, key=lambda point: point["x"])
    box = page.locator("#canvas").bounding_box()
    assert box is not None
    x, y = 28, 28 + leftmost["y"] * (box["height"] - 56)
    page.mouse.move(box["x"] + x, box["y"] + y)
    expect(page.locator("#tip")).to_be_visible()
    page.mouse.click(box["x"] + x, box["y"] + y)
    expect(page.locator("h1")).to_contain_text("23 nearest")
    assert page.url.endswith(f"item={leftmost['id']}")

    page.mouse.move(5, 5)
    page.go_back()
    expect(page.locator("#canvas")).to_be_visible()
    page.focus("#canvas")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#tip")).to_be_visible()
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_contain_text("23 nearest")


def test_pasting_and_dropping_work_like_choosing(page: Page) -> None:
    make = """([kind, bytes]) => {
        const data = new DataTransfer();
        data.items.add(new File([new Uint8Array(bytes)], "p.png", { type: "image/png" }));
        const event = kind === "paste"
            ? new ClipboardEvent("paste", { clipboardData: data }) : new DragEvent("drop", { dataTransfer: data });
        document.dispatchEvent(event);
    }"""
    page.evaluate(make, ["paste", list(image_bytes(colour_of("green", 0)))])
    first_label(page, "green")
    page.evaluate(make, ["drop", list(image_bytes(colour_of("red", 0)))])
    first_label(page, "red")


def test_errors_are_shown_in_words(page: Page) -> None:
    page.set_input_files("#file", {"name": "big.png", "mimeType": "image/png", "buffer": bytes(2**20 + 1)})
    expect(page.locator("#message")).to_have_text("big.png is larger than 1 MB. Choose a smaller image.")
    page.goto(f"{page.url.split('#')[0]}#item=99")
    expect(page.locator("#message")).to_contain_text("The gallery has no item 99")
    page.goto(f"{page.url.split('#')[0]}#image=7")
    expect(page.locator("#message")).to_contain_text("choose it again")


def test_a_file_that_is_too_large_is_reported_on_the_map_too(page: Page) -> None:
    page.click("#to-map")
    expect(page.locator("#map")).to_have_attribute("aria-busy", "false", timeout=30_000)
    page.set_input_files("#file", {"name": "big.png", "mimeType": "image/png", "buffer": bytes(2**20 + 1)})
    expect(page.locator("#map-message")).to_be_visible()
    expect(page.locator("#map-message")).to_have_text("big.png is larger than 1 MB. Choose a smaller image.")


@pytest.mark.parametrize(("typed", "asked"), [(" outer ", "+outer+"), (" green ", "green")])
def test_spaces_around_a_label_are_kept_only_where_it_has_them(page: Page, typed: str, asked: str) -> None:
    labels = [{"label": label, "items": 1} for label in (" outer ", "green")]
    page.route("**/api/labels", lambda route: route.fulfill(json=labels))
    page.route("**/api/items?*", lambda route: route.fulfill(json=[]))
    page.reload()
    expect(page.locator("#labels option")).to_have_count(2)
    page.fill("#label", typed)
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(f"label={re.escape(asked)}$"))


def test_a_missing_file_is_a_grey_tile(page: Page, gallery: Gallery) -> None:
    path = Path(gallery.store.entries_of([2])[2].path)
    content = path.read_bytes()
    path.unlink()
    page.goto(f"{page.url}#item=1")
    page.reload()  # the page does not load the same image twice
    expect(page.locator("#grid .missing")).to_have_text(["file missing"])
    path.write_bytes(content)


@pytest.mark.parametrize("view", ["", "#item=1", "#view=map", "docs"])
def test_nothing_is_wider_than_the_screen(page: Page, address: str, view: str) -> None:
    page.goto(address + view)
    for width in (360, 700, 1000):
        page.set_viewport_size({"width": width, "height": 700})
        assert page.evaluate("document.documentElement.scrollWidth") == width


def test_a_late_response_does_not_replace_a_newer_one(page: Page) -> None:
    def hold(route: object) -> None:
        time.sleep(0.5)
        route.continue_()  # type: ignore[attr-defined]

    page.route("**/api/items/1/neighbours*", hold)
    page.evaluate("location.hash = 'item=1'; setTimeout(() => { location.hash = 'item=20' }, 50)")
    expect(page.locator("h1")).to_contain_text("nearest to folder2/")
    page.wait_for_timeout(700)
    expect(page.locator("h1")).to_contain_text("nearest to folder2/")


def test_clearing_the_label_field_removes_the_filter(page: Page) -> None:
    page.fill("#label", "green")
    page.keyboard.press("Enter")
    expect(page.locator("#grid li")).to_have_count(PER_LABEL)
    # The browser clears it like this: the change event comes only when the field loses focus.
    page.evaluate("""() => {
        const field = document.getElementById("label");
        field.value = "";
        field.dispatchEvent(new Event("input"));
    }""")
    expect(page.locator("#grid li")).to_have_count(24)


def test_a_visible_map_follows_the_gallery(page: Page) -> None:
    left, right = ({"x": x, "y": 0.0, "label": "green"} for x in (0.0, 1.0))
    maps = [[{"id": 1, **left}, {"id": 2, **right}], [{"id": 2, **left}]]
    page.route("**/api/map", lambda route: route.fulfill(json={"ready": True, "points": maps.pop(0)}))
    page.clock.install()
    page.click("#to-map")
    expect(page.locator("#map")).to_have_attribute("aria-busy", "false")
    with page.expect_response("**/api/map"):
        page.clock.fast_forward("01:00")
    page.locator("#canvas").click(position={"x": 28, "y": 28})
    expect(page).to_have_url(re.compile("item=2$"))


def test_a_visible_map_recovers_from_an_error(page: Page) -> None:
    point = {"x": 0.0, "y": 0.0, "label": "green"}
    good, bad = ({"json": {"ready": True, "points": [{"id": 2, **point}]}}, {"status": 503, "json": {"detail": "alas"}})
    answers = [bad, good, bad, good]
    page.route("**/api/map", lambda route: route.fulfill(**answers.pop(0)))
    page.clock.install()
    page.click("#to-map")
    expect(page.locator("#map-message")).to_have_text("Alas.")
    for words in ("", "Alas.", ""):
        page.clock.fast_forward("01:00")
        expect(page.locator("#map-message")).to_have_text(words)
    page.locator("#canvas").click(position={"x": 28, "y": 28})
    expect(page).to_have_url(re.compile("item=2$"))


def test_touch_moves_and_zooms_the_map(window: BrowserContext, address: str) -> None:
    assert window.browser is not None
    phone = window.browser.new_context(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    page = phone.new_page()
    screen = phone.new_cdp_session(page)

    def touch(kind: str, *fingers: tuple[float, float]) -> None:
        touches = [{"x": x, "y": y, "id": id} for id, (x, y) in enumerate(fingers)]
        screen.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": touches})

    def drag(right: float, down: float) -> None:
        touch("touchStart", (x, y))
        for share in (0.5, 1):
            touch("touchMove", (x + share * right, y + share * down))
        touch("touchEnd")

    places = {1: (0.5, 0.5), 2: (0.6, 0.55), 3: (0.0, 0.0)}
    points = [{"id": id, "x": x, "y": y, "label": ""} for id, (x, y) in places.items()]
    page.route("**/api/map", lambda route: route.fulfill(json={"ready": True, "points": points}))
    page.goto(f"{address}#view=map")
    expect(page.locator("#map")).to_have_attribute("aria-busy", "false")
    box = page.locator("#canvas").bounding_box()
    assert box is not None
    # A margin of 28 pixels around the points, and 48 more on the right.
    (x, y), second, _ = (
        (box["x"] + 28 + x * (box["width"] - 104), box["y"] + 28 + y * (box["height"] - 56)) for x, y in places.values()
    )
    touch("touchStart", (x - 20, y), (x + 20, y))
    for apart in (30, 40, 60):
        touch("touchMove", (x - apart, y), (x + apart, y))
    touch("touchEnd")
    drag(20, 120)
    touch("touchStart", (x + 20, y + 120), (x + 40, y + 120))  # where the first point is now
    touch("touchEnd")
    expect(page).to_have_url(re.compile("view=map$"))  # none of these counted as a tap
    page.touchscreen.tap(x + 20 + 3 * (second[0] - x), y + 120 + 3 * (second[1] - y))
    expect(page).to_have_url(re.compile("item=2$"))

    page.go_back()
    expect(page.locator("#canvas")).to_be_visible()
    for _ in range(5):
        drag(180, 300)  # but not beyond its corner
    page.touchscreen.tap(box["x"] + 3 * 28, box["y"] + 3 * 28)
    expect(page).to_have_url(re.compile("item=3$"))
    phone.close()


@pytest.mark.parametrize("linked", [True, False])
def test_the_link_with_the_token_opens_the_page_and_the_token_is_removed_from_the_address(
    window: BrowserContext, gallery: Gallery, linked: bool
) -> None:
    """Also from a link on another site, where browsers do not send strict cookies."""
    token = "a-token-of-some-length"
    with running(make_app(gallery, max_upload_mb=1, token=token)) as (host, port):
        address, page = f"http://{host}:{port}/", window.new_page()
        page.goto(address)
        expect(page.locator("body")).to_contain_text("requires a token")
        if linked:
            page.route(
                "http://elsewhere.example/",
                lambda route: route.fulfill(
                    content_type="text/html", body=f'<a href="{address}?token={token}">a gallery</a>'
                ),
            )
            page.goto("http://elsewhere.example/")
            page.click("a")
        else:
            page.goto(f"{address}?token={token}")
        expect(page.locator("#grid li")).to_have_count(24)
        assert page.url == address
        upload(page, colour_of("green", 3))
        first_label(page, "green")
        assert page.evaluate("document.cookie") == ""
        page.close()
