"""The API: right neighbours, names without paths, safe headers, and one sentence for everything that is refused."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from reference import hostile_images as hostile
from serve.colours import LABELS, PER_LABEL, MeanColour, colour_of, picture_bytes

from nearkin.errors import UserError
from nearkin.reports.map import flat_places
from nearkin.search.gallery import Gallery
from nearkin.search.store import Entry, ItemNotFound
from nearkin.serve import app, caching, places, service, space_map
from nearkin.serve.app import make_app
from nearkin.serve.caching import ThumbnailCache, TTLCache
from nearkin.serve.schemas import shown_name
from nearkin.serve.space_map import sample_ids

ALL = [(label, number) for label in LABELS for number in range(PER_LABEL)]  # by id, from 1
NO_ITEM = "the gallery has no item {}; it may have been removed or replaced: search again"


def nearest_by_hand(colour: tuple[int, int, int], leave_out: int | None = None) -> list[tuple[int, float]]:
    """Ids and distances of all items, nearest first."""
    far = [
        (id, sum((a / 255 - b / 255) ** 2 for a, b in zip(colour, colour_of(*item), strict=True)) ** 0.5)
        for id, item in enumerate(ALL, start=1)
        if id != leave_out
    ]
    return sorted(far, key=lambda pair: pair[1])


def test_a_picture_finds_its_nearest_with_their_distances(client: TestClient) -> None:
    colour = (190, 60, 45)
    found = client.post("/api/search", files={"file": picture_bytes(colour)}, data={"k": "5"}).json()
    expected = nearest_by_hand(colour)[:5]
    assert found["item"] is None
    assert [each["id"] for each in found["neighbours"]] == [id for id, _ in expected]
    assert [each["distance"] for each in found["neighbours"]] == pytest.approx([far for _, far in expected], abs=1e-5)


def test_an_item_finds_its_neighbours_but_not_itself(client: TestClient) -> None:
    found = client.get("/api/items/4/neighbours", params={"k": 3}).json()
    assert found["item"] == {"id": 4, "name": "folder0/<i>3.png", "label": "red"}
    ids = [each["id"] for each in found["neighbours"]]
    assert len(ids) == 3
    assert set(ids) <= {id for id, _ in nearest_by_hand(colour_of("red", 3), leave_out=4)[:4]}


def test_a_label_filters_both_ways_of_searching(client: TestClient) -> None:
    by_item = client.get("/api/items/1/neighbours", params={"k": 200, "label": "green"}).json()["neighbours"]
    form = {"k": "200", "label": "green"}
    by_picture = client.post("/api/search", files={"file": picture_bytes()}, data=form).json()["neighbours"]
    for found in (by_item, by_picture):
        assert {each["label"] for each in found} == {"green"}
        assert len(found) == PER_LABEL
    assert len(client.get("/api/items/1/neighbours", params={"k": 200, "label": ""}).json()["neighbours"]) == 23


def test_labels_are_counted(client: TestClient) -> None:
    assert client.get("/api/labels").json() == [{"label": name, "items": PER_LABEL} for name in sorted(LABELS)]


def test_some_items_to_begin_with_are_the_same_each_time(client: TestClient) -> None:
    first = client.get("/api/items", params={"k": 5}).json()
    assert first == client.get("/api/items", params={"k": 5}).json()
    assert len({item["id"] for item in first}) == 5
    red = client.get("/api/items", params={"k": 200, "label": "red"}).json()
    assert [item["id"] for item in red] == list(range(1, 9))


def test_health_says_what_is_served(client: TestClient) -> None:
    health = client.get("/api/health").json()
    assert (health["status"], health["items"], health["max_upload_mb"]) == ("ok", 24, 1)


def test_thumbnails_are_small_new_encodings_that_the_browser_keeps(client: TestClient) -> None:
    first = client.get("/api/items/1/thumbnail", params={"size": 64})
    assert first.headers["content-type"] == "image/jpeg"
    assert Image.open(BytesIO(first.content)).size == (64, 64)
    again = client.get("/api/items/1/thumbnail", params={"size": 64}, headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert client.get("/api/items/1/thumbnail?size=65").headers["etag"] != first.headers["etag"]
    for size in (0, 15, 513, 100_000):
        assert client.get(f"/api/items/1/thumbnail?size={size}").status_code == 422


def test_the_larger_picture_is_never_the_file_itself(client: TestClient, gallery: Gallery) -> None:
    path = Path(gallery.store.entries_of([2])[2].path)
    exif = Image.Exif()
    exif[0x010E] = "taken at home"
    Image.new("RGB", (2000, 1000), "red").save(path, "JPEG", exif=exif)
    answer = client.get("/api/items/2/picture")
    assert Image.open(BytesIO(answer.content)).size == (1024, 512)
    assert b"taken at home" not in answer.content


def test_a_changed_file_gives_a_new_picture_and_a_vanished_one_404(client: TestClient, gallery: Gallery) -> None:
    before = client.get("/api/items/3/thumbnail")
    path = Path(gallery.store.entries_of([3])[3].path)
    path.write_bytes(picture_bytes((9, 9, 9), side=77))
    after = client.get("/api/items/3/thumbnail", headers={"If-None-Match": before.headers["etag"]})
    assert after.status_code == 200
    assert after.content != before.content
    path.unlink()
    for kind in ("thumbnail", "picture"):
        gone = client.get(f"/api/items/3/{kind}")
        assert (gone.status_code, gone.json()) == (
            404,
            {"detail": "the file of item 3 is gone or can no longer be read"},
        )
    path.write_bytes(b"no picture any more")
    assert client.get("/api/items/3/thumbnail").status_code == 404
    assert client.get("/api/items/3/neighbours").status_code == 200


def test_a_picture_of_too_many_pixels_is_not_decoded(tmp_path: Path) -> None:
    (tmp_path / "x.png").write_bytes(hostile.png(20_000, 20_000, rows=0))
    kept = ThumbnailCache()
    with closing(kept), pytest.raises(OSError, match="more than 100,000,000 pixels"):
        kept.get(tmp_path / "x.png", 64)


def test_pictures_kept_in_memory_are_bounded(tmp_path: Path) -> None:
    kept = ThumbnailCache(max_bytes=3000)
    for number in range(12):
        path = tmp_path / f"{number}.png"
        path.write_bytes(picture_bytes((number, 0, 0), side=64))
        size = len(kept.get(path, 64).content)
    assert 0 < kept._bytes <= 3000
    kept.close()
    assert kept._bytes == sum(map(len, kept._kept.values()))
    assert len(kept._kept) == 3000 // size


@pytest.mark.parametrize("id", ["0", "99", "-1", "99999999999999999999999"])
@pytest.mark.parametrize("kind", ["neighbours", "thumbnail", "picture"])
def test_an_item_that_is_not_there_is_404(client: TestClient, id: str, kind: str) -> None:
    answer = client.get(f"/api/items/{id}/{kind}")
    assert (answer.status_code, list(answer.json())) == (404, ["detail"])


@pytest.mark.parametrize(
    "path",
    [
        "/../../../../etc/passwd",
        "/..%2f..%2f..%2fetc%2fpasswd",
        "/%2e%2e/%2e%2e/%2e%2e/app.py",
        "/..%5capp.py",
        "/app.py",
        "/api/items/..%2f1/picture",
        "/api/items/%2fetc%2fpasswd/picture",
        "/api/items/1%00/picture",
        "//etc/passwd",
    ],
)
def test_no_path_from_a_client_is_opened(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code in (404, 422)
    assert "root:" not in answer.text
    assert "FastAPI" not in answer.text


def test_no_path_of_the_server_leaves_it(client: TestClient, gallery: Gallery, embedder: MeanColour) -> None:
    Path(gallery.store.entries_of([5])[5].path).unlink()
    answers = [client.get(f"/api/items/{id}/{kind}") for id in (1, 5, 99) for kind in ("neighbours", "thumbnail")]
    answers += [client.get(path) for path in ("/", "/docs", "/openapi.json", "/api/labels", "/api/items", "/api/map")]
    poison = client.post("/api/search", files={"file": picture_bytes(embedder.POISON)})
    assert (poison.status_code, poison.json()) == (500, {"detail": "the server failed at this; its log says why"})
    for answer in [*answers, poison]:
        assert b"secret" not in answer.content
        assert "secret" not in str(answer.headers)


@pytest.mark.parametrize("path", ["/", "/page.js", "/docs", "/api/health", "/api/items/1/thumbnail", "/nothing"])
def test_every_answer_has_safe_headers(client: TestClient, path: str) -> None:
    headers = client.get(path).headers
    assert headers["content-security-policy"].startswith("default-src 'self'")
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cache-control"] == "no-cache"
    assert "set-cookie" not in headers
    assert "access-control-allow-origin" not in headers


def test_a_failure_has_safe_headers_too(client: TestClient, embedder: MeanColour) -> None:
    answer = client.post("/api/search", files={"file": picture_bytes(embedder.POISON)})
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_the_api_is_explained_without_another_server(client: TestClient) -> None:
    page = client.get("/docs").text
    for path in client.get("/openapi.json").json()["paths"]:
        assert path in page
    assert "integer from 1 to 200, default 20" in page
    assert "http://" not in page
    assert "https://" not in page
    assert "<script" not in page


def test_twenty_at_once_need_fewer_calls_of_the_model(client: TestClient, embedder: MeanColour) -> None:
    colours = [colour_of(*item) for item in ALL[:20]]

    def ask(colour: tuple[int, int, int]) -> int:
        form = {"k": "1"}
        found = client.post("/api/search", files={"file": picture_bytes(colour)}, data=form).json()
        return int(found["neighbours"][0]["id"])

    embedder.may_go_on.clear()  # the first call holds the model until the others have come
    threading.Timer(0.5, embedder.may_go_on.set).start()
    with ThreadPoolExecutor(20) as pool:
        assert list(pool.map(ask, colours)) == list(range(1, 21))
    assert sum(embedder.calls) == 20
    assert len(embedder.calls) < 10


def test_one_bad_picture_does_not_fail_those_beside_it(client: TestClient, embedder: MeanColour) -> None:
    def ask(colour: tuple[int, int, int]) -> int:
        return client.post("/api/search", files={"file": picture_bytes(colour)}).status_code

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(ask, [(9, 9, 9), embedder.POISON, *[(8, 8, 8)] * 4])) == [200, 500, 200, 200, 200, 200]


def test_beyond_a_limit_requests_are_told_to_come_again(
    gallery: Gallery, embedder: MeanColour, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "MAX_UPLOADS", 1)
    monkeypatch.setattr(places, "PATIENCE", 0.01)
    with TestClient(make_app(gallery)) as client, ThreadPoolExecutor(1) as pool:
        embedder.may_go_on.clear()
        inside = pool.submit(client.post, "/api/search", files={"file": picture_bytes()})
        until = time.monotonic() + 5
        while not embedder.calls and time.monotonic() < until:
            time.sleep(0.01)
        refused = client.post("/api/search", files={"file": picture_bytes()})
        assert client.get("/api/health").status_code == 200  # short requests have places of their own
        embedder.may_go_on.set()
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert refused.headers["x-content-type-options"] == "nosniff"
        assert "try again" in refused.json()["detail"]
        assert inside.result().status_code == 200
        assert client.post("/api/search", files={"file": picture_bytes()}).status_code == 200


def test_the_map_is_computed_once_and_beside_the_answers(client: TestClient, gallery: Gallery) -> None:
    first = client.get("/api/map")
    assert (first.status_code, first.json()) == (202, {"ready": False, "points": []})
    until = time.monotonic() + 30
    while (answer := client.get("/api/map")).status_code == 202 and time.monotonic() < until:
        time.sleep(0.05)
    points = answer.json()["points"]
    assert sorted(point["id"] for point in points) == list(range(1, 25))
    assert all(0 <= point[axis] <= 1 for point in points for axis in "xy")
    assert {point["id"]: point["label"] for point in points} == {
        id: label for id, (label, _) in enumerate(ALL, start=1)
    }
    gallery.store.remove([1])
    assert client.get("/api/map").json()["points"] == points


def test_a_gallery_that_changes_while_served_is_shown_as_it_is(
    gallery: Gallery, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    look_at_every_question(monkeypatch)
    monkeypatch.setattr(space_map, "PAUSE", 0)
    with TestClient(make_app(gallery)) as client:
        assert client.get("/api/items/3/thumbnail").status_code == 200
        drawn_map(client)
        gallery.store.put([Entry(str(tmp_path / "x.png"), "new", 1, 1)], np.ones((1, 3), dtype=np.float32))
        assert {"label": "new", "items": 1} in client.get("/api/labels").json()
        assert client.get("/api/items/1/neighbours", params={"label": "new"}).json()["neighbours"][0]["id"] == 25
        gallery.store.remove([3, 25])
        for kind in ("neighbours", "thumbnail", "picture"):
            assert client.get(f"/api/items/3/{kind}").status_code == 404
        assert {item["id"] for item in client.get("/api/items").json()} == {*range(1, 25)} - {3}
        until = time.monotonic() + 10
        while 3 in drawn_map(client) and time.monotonic() < until:
            time.sleep(0.05)
        assert drawn_map(client) == {*range(1, 25)} - {3}


def test_a_map_that_is_no_longer_true_says_so_and_shows_no_removed_items(
    gallery: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_at_every_question(monkeypatch)
    monkeypatch.setattr(space_map, "PAUSE", 0)
    with TestClient(make_app(gallery)) as client:
        assert len(drawn_map(client)) == 24
        hold = threading.Event()
        monkeypatch.setattr(space_map, "flat_places", lambda vectors: hold.wait(10) and flat_places(vectors))
        gallery.store.remove([3])
        stale = client.get("/api/map")
        assert (stale.status_code, stale.json()["ready"]) == (202, False)
        assert {point["id"] for point in stale.json()["points"]} == {*range(1, 25)} - {3}
        hold.set()
        assert drawn_map(client) == {*range(1, 25)} - {3}


def test_after_a_map_there_is_a_rest_in_which_items_only_vanish(
    gallery: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_at_every_question(monkeypatch)
    monkeypatch.setattr(space_map, "PAUSE", 1e6)
    with TestClient(make_app(gallery)) as client:
        drawn_map(client)
        gallery.store.remove([3])
        gallery.store.put([Entry("/x.png", "new", 1, 1)], np.ones((1, 3), dtype=np.float32))
        for _ in range(3):
            answer = client.get("/api/map")
            assert answer.status_code == 200
            assert {point["id"] for point in answer.json()["points"]} == {*range(1, 25)} - {3}


def test_the_end_of_the_server_in_the_middle_of_a_map_is_quiet(
    gallery: Gallery, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reading, read = threading.Event(), gallery.store.entries_of

    def slowly(ids: Sequence[int]) -> dict[int, Entry]:
        reading.set()
        time.sleep(0.2)
        return read(ids)

    monkeypatch.setattr(gallery.store, "entries_of", slowly)
    with TestClient(make_app(gallery)) as client:
        client.get("/api/map")
        assert reading.wait(10)
    gallery.close()
    time.sleep(0.3)
    assert not caplog.records


def look_at_every_question(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "LABELS_TTL", 0)
    monkeypatch.setattr(service, "SAMPLE_TTL", 0)
    monkeypatch.setattr(caching, "PAUSE", 0)


def rest_after_work(ask: Callable[[], object], spans: list[tuple[float, float]]) -> float:
    """Asked without a pause, how many times as long as the first span it takes until the second begins."""
    until = time.monotonic() + 90
    while len(spans) < 2 and time.monotonic() < until:
        ask()
    (began, ended), (again, _) = spans
    return (again - ended) / (ended - began)


def slowed(work: Callable[..., object], spans: list[tuple[float, float]]) -> Callable[..., object]:
    def slowly(*arguments: object) -> object:
        began = time.monotonic()
        time.sleep(0.05)
        answer = work(*arguments)
        spans.append((began, time.monotonic()))
        return answer

    return slowly


@pytest.mark.parametrize(("path", "look"), [("map", "ids"), ("labels", "counts")])
def test_looks_at_a_slow_store_leave_it_to_the_searches(
    gallery: Gallery, monkeypatch: pytest.MonkeyPatch, path: str, look: str
) -> None:
    monkeypatch.setattr(service, "LABELS_TTL", 0)
    monkeypatch.setattr(service, "SAMPLE_TTL", 0)
    looks: list[tuple[float, float]] = []
    monkeypatch.setattr(gallery.store, look, slowed(getattr(gallery.store, look), looks))
    with TestClient(make_app(gallery)) as client:
        assert rest_after_work(lambda: client.get(f"/api/{path}"), looks) > 20


def test_looks_that_fail_leave_the_store_to_the_searches_too(gallery: Gallery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "LABELS_TTL", 0)
    looks: list[int] = []

    def failing() -> dict[str, int]:
        looks.append(1)
        time.sleep(0.05)
        raise UserError("Milvus does not answer; see that it runs")

    monkeypatch.setattr(gallery.store, "counts", failing)
    with TestClient(make_app(gallery)) as client:
        assert [client.get("/api/labels").status_code for _ in range(5)] == [503] * 5
    assert len(looks) == 1


def test_a_look_rests_a_minute_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(caching, "time", SimpleNamespace(monotonic=lambda: now[0]))
    looks: list[int] = []

    async def slow() -> int:
        now[0] += 20
        looks.append(1)
        return len(looks)

    async def answers() -> list[int]:
        look = TTLCache(slow, seconds=0)
        first = [await look(), await look()]
        now[0] += 61
        return [*first, await look()]

    assert asyncio.run(answers()) == [1, 1, 2]


def test_a_label_that_came_after_the_last_look_is_known(client: TestClient, gallery: Gallery) -> None:
    client.get("/api/labels")
    gallery.store.put([Entry("/new.png", "quite new", 1, 1)], gallery.store.vectors([1]))
    assert client.get("/api/items/1/neighbours", params={"label": "quite new"}).status_code == 200
    assert client.get("/api/items/1/neighbours", params={"label": "unheard of"}).status_code == 422


def test_after_a_map_the_processor_is_left_to_others(gallery: Gallery, monkeypatch: pytest.MonkeyPatch) -> None:
    look_at_every_question(monkeypatch)
    maps: list[tuple[float, float]] = []
    monkeypatch.setattr(space_map, "flat_places", slowed(flat_places, maps))
    with TestClient(make_app(gallery)) as client:
        drawn_map(client)
        gallery.store.remove([3])
        assert rest_after_work(lambda: client.get("/api/map"), maps) > 2


def drawn_map(client: TestClient) -> set[int]:
    """The ids on the map, when it is ready."""
    until = time.monotonic() + 120
    while (answer := client.get("/api/map")).status_code == 202 and time.monotonic() < until:
        time.sleep(0.05)
    return {point["id"] for point in answer.json()["points"]}


def test_an_item_removed_between_two_questions_is_404_or_left_out(
    client: TestClient, gallery: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors = gallery.store.vectors
    to_remove = [2]

    def removed_meanwhile(ids: list[int]) -> object:
        gallery.store.remove(to_remove)
        return vectors(ids)

    monkeypatch.setattr(gallery.store, "vectors", removed_meanwhile)
    answer = client.get("/api/items/2/neighbours")
    assert (answer.status_code, answer.json()["detail"]) == (404, NO_ITEM.format(2))
    assert client.get("/api/items/2/picture").json()["detail"] == NO_ITEM.format(2)
    to_remove[:] = [3, 4]
    assert drawn_map(client) == {*range(1, 25)} - {2, 3, 4}


def test_the_map_asks_for_all_its_items_at_once(
    client: TestClient, gallery: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    entries_of = gallery.store.entries_of
    monkeypatch.setattr(gallery.store, "entries_of", lambda ids: asked.append(len(ids)) or entries_of(ids))
    drawn_map(client)
    assert asked == [24]


def test_no_page_reads_the_whole_gallery(client: TestClient, gallery: Gallery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gallery.store, "entries", lambda: pytest.fail("all entries were read"))
    for path in ("labels", "items", "items?label=red", "items/1/neighbours", "items/99/thumbnail", "health"):
        assert client.get(f"/api/{path}").status_code in (200, 404)
    assert len(drawn_map(client)) == 24


@pytest.mark.parametrize("most", [0, 1, 7, 24, 100])
def test_a_sample_is_drawn_evenly_from_all_labels(gallery: Gallery, most: int) -> None:
    drawn = sample_ids(gallery.store, most)
    assert len(drawn) == len(set(drawn)) == min(most, 24)
    assert set(drawn) <= set(range(1, 25))
    assert drawn == sample_ids(gallery.store, most)


class Ids:
    """As much of a store as a sample is drawn from."""

    def __init__(self, ids: Iterable[int]) -> None:
        self._ids = sorted(ids)

    def __len__(self) -> int:
        return len(self._ids)

    def ids(self, k: int) -> list[int]:
        return self._ids[:k]


def drawn(ids: Iterable[int], most: int) -> list[int]:
    return sample_ids(Ids(ids), most)  # type: ignore[arg-type]


some_ids = st.sets(st.integers(1, 2**63 - 1), max_size=60)


@given(some_ids, some_ids, st.integers(0, 80))
def test_those_drawn_stay_as_others_come_unless_these_take_their_places(
    old: set[int], new: set[int], most: int
) -> None:
    before, after = drawn(old, most), drawn(old | new, most)
    assert [id for id in after if id in old] == [id for id in before if id in after]
    assert len(after) == min(most, len(old | new))


@pytest.mark.parametrize("ids", [range(1, 10_001), range(2**62, 2**62 + 10_000 * 2**22, 2**22)])
def test_every_id_is_as_likely_to_be_drawn(ids: range) -> None:
    """Whether ids count up or rise with time; within four standard deviations in every tenth."""
    tenths = np.bincount([ids.index(id) // 1000 for id in drawn(ids, 2000)], minlength=10)
    assert np.abs(tenths - 200).max() < 4 * (200 * 0.9 * 0.8) ** 0.5


def test_those_who_ask_at_once_share_one_look(gallery: Gallery, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []

    def slowly() -> dict[str, int]:
        looks.append(1)
        time.sleep(0.1)
        return {"red": 8}

    monkeypatch.setattr(gallery, "labels", slowly)
    with TestClient(make_app(gallery)) as client, ThreadPoolExecutor(5) as pool:
        assert {answer.status_code for answer in pool.map(client.get, ["/api/labels"] * 5)} == {200}
    assert len(looks) == 1


def test_a_store_that_cannot_be_reached_says_so_and_works_again(
    client: TestClient, gallery: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_: object) -> None:
        raise UserError(f"could not read {gallery.path}/items.sqlite; see to its disk")

    monkeypatch.setattr(caching, "PAUSE", 0)  # beside other work a failed lookup takes long, and the pause after it
    with monkeypatch.context() as patch:
        for name in ("entries_of", "vectors", "search", "counts", "ids", "__len__"):
            patch.setattr(type(gallery.store), name, unreachable)
        answers = [client.get(f"/api/{path}") for path in ("items/1/neighbours", "items/1/thumbnail", "labels", "map")]
        answers.append(client.post("/api/search", files={"file": picture_bytes()}))
        for answer in answers:
            assert answer.status_code == 503
            assert answer.json()["detail"].startswith("the gallery's items cannot be read at the moment")
            assert "items.sqlite" not in answer.text
            assert answer.headers["retry-after"] == "5"
    assert client.get("/api/items/1/neighbours").status_code == 200
    assert len(drawn_map(client)) == 24


@pytest.mark.parametrize(
    ("error", "code"), [(UserError("no answer"), 503), (ItemNotFound(3), 503), (RuntimeError("/secret"), 500)]
)
def test_a_map_that_failed_is_begun_again(
    client: TestClient, gallery: Gallery, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int
) -> None:
    def fail(_: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(gallery.store, "vectors", fail)
        until = time.monotonic() + 10
        while (answer := client.get("/api/map")).status_code == 202 and time.monotonic() < until:
            time.sleep(0.05)
        assert answer.status_code == code
        assert "secret" not in answer.text
    assert len(drawn_map(client)) == 24


def test_only_the_given_names_are_answered(gallery: Gallery) -> None:
    with TestClient(make_app(gallery, hosts={"localhost", "[::1]"})) as client:
        for name in ("localhost", "LOCALHOST:8000", "[::1]", "[::1]:8000"):
            assert client.get("/api/health", headers={"Host": name}).status_code == 200
        for name in ("evil.example", "evil.example:8000", "localhost.evil.example", "", "::1"):
            answer = client.get("/api/health", headers={"Host": name})
            assert (answer.status_code, list(answer.json())) == (400, ["detail"])
            assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.fixture
def empty(gallery: Gallery) -> Iterator[TestClient]:
    gallery.store.remove(list(gallery.store.entries()))
    with TestClient(make_app(gallery)) as client:
        yield client


def test_an_empty_gallery_answers_with_nothing(empty: TestClient) -> None:
    assert empty.get("/api/items").json() == empty.get("/api/labels").json() == []
    assert empty.post("/api/search", files={"file": picture_bytes()}).json()["neighbours"] == []


def test_names_tell_no_more_than_folder_and_file() -> None:
    assert shown_name("/home/ada/private/roses/17.jpg") == "roses/17.jpg"
    assert shown_name("/17.jpg") == "17.jpg"
