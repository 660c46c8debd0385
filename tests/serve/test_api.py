"""The API: correct neighbours, names without paths, security headers, and one sentence for every error."""

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
from serve.colours import LABELS, PER_LABEL, MeanColour, colour_of, image_bytes

from nearkin.errors import UserError
from nearkin.reports.map import project_2d
from nearkin.search.gallery import Gallery
from nearkin.search.store import Entry, ItemNotFound
from nearkin.serve import app, caching, service, slots, space_map
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


def test_an_image_finds_its_nearest_with_their_distances(client: TestClient) -> None:
    colour = (190, 60, 45)
    found = client.post("/api/search", files={"file": image_bytes(colour)}, data={"k": "5"}).json()
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


def test_a_label_filters_searches_by_image_and_by_item(client: TestClient) -> None:
    by_item = client.get("/api/items/1/neighbours", params={"k": 200, "label": "green"}).json()["neighbours"]
    form = {"k": "200", "label": "green"}
    by_image = client.post("/api/search", files={"file": image_bytes()}, data=form).json()["neighbours"]
    for found in (by_item, by_image):
        assert {each["label"] for each in found} == {"green"}
        assert len(found) == PER_LABEL
    assert len(client.get("/api/items/1/neighbours", params={"k": 200, "label": ""}).json()["neighbours"]) == 23


def test_labels_are_counted(client: TestClient) -> None:
    assert client.get("/api/labels").json() == [{"label": name, "items": PER_LABEL} for name in sorted(LABELS)]


def test_the_sample_of_items_is_the_same_each_time(client: TestClient) -> None:
    first = client.get("/api/items", params={"k": 5}).json()
    assert first == client.get("/api/items", params={"k": 5}).json()
    assert len({item["id"] for item in first}) == 5
    red = client.get("/api/items", params={"k": 200, "label": "red"}).json()
    assert [item["id"] for item in red] == list(range(1, 9))


def test_health_reports_what_is_served(client: TestClient) -> None:
    health = client.get("/api/health").json()
    assert (health["status"], health["items"], health["max_upload_mb"]) == ("ok", 24, 1)


def test_thumbnails_are_re_encoded_and_cached_by_the_browser(client: TestClient) -> None:
    first = client.get("/api/items/1/thumbnail", params={"size": 64})
    assert first.headers["content-type"] == "image/jpeg"
    assert Image.open(BytesIO(first.content)).size == (64, 64)
    again = client.get("/api/items/1/thumbnail", params={"size": 64}, headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert client.get("/api/items/1/thumbnail?size=65").headers["etag"] != first.headers["etag"]
    for size in (0, 15, 513, 100_000):
        assert client.get(f"/api/items/1/thumbnail?size={size}").status_code == 422


def test_the_larger_image_is_never_the_file_itself(client: TestClient, gallery: Gallery) -> None:
    path = Path(gallery.store.entries_of([2])[2].path)
    exif = Image.Exif()
    exif[0x010E] = "taken at home"
    Image.new("RGB", (2000, 1000), "red").save(path, "JPEG", exif=exif)
    answer = client.get("/api/items/2/image")
    assert Image.open(BytesIO(answer.content)).size == (1024, 512)
    assert b"taken at home" not in answer.content


def test_a_changed_file_gives_a_new_image_and_a_missing_one_404(client: TestClient, gallery: Gallery) -> None:
    before = client.get("/api/items/3/thumbnail")
    path = Path(gallery.store.entries_of([3])[3].path)
    path.write_bytes(image_bytes((9, 9, 9), side=77))
    after = client.get("/api/items/3/thumbnail", headers={"If-None-Match": before.headers["etag"]})
    assert after.status_code == 200
    assert after.content != before.content
    path.unlink()
    for kind in ("thumbnail", "image"):
        gone = client.get(f"/api/items/3/{kind}")
        assert (gone.status_code, gone.json()) == (
            404,
            {"detail": "the file of item 3 is missing or unreadable"},
        )
    path.write_bytes(b"not an image")
    assert client.get("/api/items/3/thumbnail").status_code == 404
    assert client.get("/api/items/3/neighbours").status_code == 200


def test_an_image_with_too_many_pixels_is_not_decoded(tmp_path: Path) -> None:
    (tmp_path / "x.png").write_bytes(hostile.png(20_000, 20_000, rows=0))
    thumbnails = ThumbnailCache()
    with closing(thumbnails), pytest.raises(OSError, match="more than 100,000,000 pixels"):
        thumbnails.get(tmp_path / "x.png", 64)


def test_the_thumbnail_cache_is_bounded(tmp_path: Path) -> None:
    thumbnails = ThumbnailCache(max_bytes=3000)
    for number in range(12):
        path = tmp_path / f"{number}.png"
        path.write_bytes(image_bytes((number, 0, 0), side=64))
        size = len(thumbnails.get(path, 64).content)
    assert 0 < thumbnails._bytes <= 3000
    thumbnails.close()
    assert thumbnails._bytes == sum(map(len, thumbnails._cached.values()))
    assert len(thumbnails._cached) == 3000 // size


@pytest.mark.parametrize("id", ["0", "99", "-1", "99999999999999999999999"])
@pytest.mark.parametrize("kind", ["neighbours", "thumbnail", "image"])
def test_an_unknown_item_is_404(client: TestClient, id: str, kind: str) -> None:
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
        "/api/items/..%2f1/image",
        "/api/items/%2fetc%2fpasswd/image",
        "/api/items/1%00/image",
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
    poison = client.post("/api/search", files={"file": image_bytes(embedder.POISON)})
    assert (poison.status_code, poison.json()) == (500, {"detail": "internal error; the server's log has the details"})
    for answer in [*answers, poison]:
        assert b"secret" not in answer.content
        assert "secret" not in str(answer.headers)


@pytest.mark.parametrize("path", ["/", "/page.js", "/docs", "/api/health", "/api/items/1/thumbnail", "/nothing"])
def test_every_response_has_security_headers(client: TestClient, path: str) -> None:
    headers = client.get(path).headers
    assert headers["content-security-policy"].startswith("default-src 'self'")
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cache-control"] == "no-cache"
    assert "set-cookie" not in headers
    assert "access-control-allow-origin" not in headers


def test_an_internal_error_has_security_headers_too(client: TestClient, embedder: MeanColour) -> None:
    answer = client.post("/api/search", files={"file": image_bytes(embedder.POISON)})
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_the_api_documentation_needs_no_other_server(client: TestClient) -> None:
    page = client.get("/docs").text
    for path in client.get("/openapi.json").json()["paths"]:
        assert path in page
    assert "integer from 1 to 200, default 20" in page
    assert "http://" not in page
    assert "https://" not in page
    assert "<script" not in page


def test_concurrent_searches_share_calls_of_the_model(client: TestClient, embedder: MeanColour) -> None:
    colours = [colour_of(*item) for item in ALL[:20]]

    def ask(colour: tuple[int, int, int]) -> int:
        form = {"k": "1"}
        found = client.post("/api/search", files={"file": image_bytes(colour)}, data=form).json()
        return int(found["neighbours"][0]["id"])

    embedder.may_go_on.clear()  # the first call blocks the model until the others have arrived
    threading.Timer(0.5, embedder.may_go_on.set).start()
    with ThreadPoolExecutor(20) as pool:
        assert list(pool.map(ask, colours)) == list(range(1, 21))
    assert sum(embedder.calls) == 20
    assert len(embedder.calls) < 10


def test_one_bad_image_does_not_fail_the_rest_of_its_batch(client: TestClient, embedder: MeanColour) -> None:
    def ask(colour: tuple[int, int, int]) -> int:
        return client.post("/api/search", files={"file": image_bytes(colour)}).status_code

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(ask, [(9, 9, 9), embedder.POISON, *[(8, 8, 8)] * 4])) == [200, 500, 200, 200, 200, 200]


def test_requests_above_the_limit_are_told_to_try_again(
    gallery: Gallery, embedder: MeanColour, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "MAX_UPLOADS", 1)
    monkeypatch.setattr(slots, "WAIT_SECONDS", 0.01)
    with TestClient(make_app(gallery)) as client, ThreadPoolExecutor(1) as pool:
        embedder.may_go_on.clear()
        inside = pool.submit(client.post, "/api/search", files={"file": image_bytes()})
        until = time.monotonic() + 5
        while not embedder.calls and time.monotonic() < until:
            time.sleep(0.01)
        refused = client.post("/api/search", files={"file": image_bytes()})
        assert client.get("/api/health").status_code == 200  # short requests have their own slots
        embedder.may_go_on.set()
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert refused.headers["x-content-type-options"] == "nosniff"
        assert "try again" in refused.json()["detail"]
        assert inside.result().status_code == 200
        assert client.post("/api/search", files={"file": image_bytes()}).status_code == 200


def test_the_map_is_computed_once_in_the_background(client: TestClient, gallery: Gallery) -> None:
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


def test_changes_of_the_gallery_are_served(gallery: Gallery, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    disable_caches(monkeypatch)
    monkeypatch.setattr(space_map, "PAUSE", 0)
    with TestClient(make_app(gallery)) as client:
        assert client.get("/api/items/3/thumbnail").status_code == 200
        drawn_map(client)
        gallery.store.put([Entry(str(tmp_path / "x.png"), "new", 1, 1)], np.ones((1, 3), dtype=np.float32))
        assert {"label": "new", "items": 1} in client.get("/api/labels").json()
        assert client.get("/api/items/1/neighbours", params={"label": "new"}).json()["neighbours"][0]["id"] == 25
        gallery.store.remove([3, 25])
        for kind in ("neighbours", "thumbnail", "image"):
            assert client.get(f"/api/items/3/{kind}").status_code == 404
        assert {item["id"] for item in client.get("/api/items").json()} == {*range(1, 25)} - {3}
        until = time.monotonic() + 10
        while 3 in drawn_map(client) and time.monotonic() < until:
            time.sleep(0.05)
        assert drawn_map(client) == {*range(1, 25)} - {3}


def test_an_outdated_map_is_not_ready_and_shows_no_removed_items(
    gallery: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    disable_caches(monkeypatch)
    monkeypatch.setattr(space_map, "PAUSE", 0)
    with TestClient(make_app(gallery)) as client:
        assert len(drawn_map(client)) == 24
        hold = threading.Event()
        monkeypatch.setattr(space_map, "project_2d", lambda vectors: hold.wait(10) and project_2d(vectors))
        gallery.store.remove([3])
        stale = client.get("/api/map")
        assert (stale.status_code, stale.json()["ready"]) == (202, False)
        assert {point["id"] for point in stale.json()["points"]} == {*range(1, 25)} - {3}
        hold.set()
        assert drawn_map(client) == {*range(1, 25)} - {3}


def test_during_the_pause_after_a_map_items_are_only_removed(gallery: Gallery, monkeypatch: pytest.MonkeyPatch) -> None:
    disable_caches(monkeypatch)
    monkeypatch.setattr(space_map, "PAUSE", 1e6)
    with TestClient(make_app(gallery)) as client:
        drawn_map(client)
        gallery.store.remove([3])
        gallery.store.put([Entry("/x.png", "new", 1, 1)], np.ones((1, 3), dtype=np.float32))
        for _ in range(3):
            answer = client.get("/api/map")
            assert answer.status_code == 200
            assert {point["id"] for point in answer.json()["points"]} == {*range(1, 25)} - {3}


def test_shutdown_while_the_map_is_computed_logs_nothing(
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


def disable_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "LABELS_TTL", 0)
    monkeypatch.setattr(service, "SAMPLE_TTL", 0)
    monkeypatch.setattr(caching, "PAUSE", 0)


def pause_after_work(ask: Callable[[], object], spans: list[tuple[float, float]]) -> float:
    """The pause between the first two spans as a multiple of the first, if requests never stop."""
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
def test_lookups_in_a_slow_store_are_rare(
    gallery: Gallery, monkeypatch: pytest.MonkeyPatch, path: str, look: str
) -> None:
    monkeypatch.setattr(service, "LABELS_TTL", 0)
    monkeypatch.setattr(service, "SAMPLE_TTL", 0)
    lookups: list[tuple[float, float]] = []
    monkeypatch.setattr(gallery.store, look, slowed(getattr(gallery.store, look), lookups))
    with TestClient(make_app(gallery)) as client:
        assert pause_after_work(lambda: client.get(f"/api/{path}"), lookups) > 20


def test_failing_lookups_are_rare_too(gallery: Gallery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "LABELS_TTL", 0)
    lookups: list[int] = []

    def failing() -> dict[str, int]:
        lookups.append(1)
        time.sleep(0.05)
        raise UserError("Milvus does not respond")

    monkeypatch.setattr(gallery.store, "counts", failing)
    with TestClient(make_app(gallery)) as client:
        assert [client.get("/api/labels").status_code for _ in range(5)] == [503] * 5
    assert len(lookups) == 1


def test_the_pause_after_a_lookup_is_at_most_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(caching, "time", SimpleNamespace(monotonic=lambda: now[0]))
    lookups: list[int] = []

    async def slow() -> int:
        now[0] += 20
        lookups.append(1)
        return len(lookups)

    async def answers() -> list[int]:
        look = TTLCache(slow, seconds=0)
        first = [await look(), await look()]
        now[0] += 61
        return [*first, await look()]

    assert asyncio.run(answers()) == [1, 1, 2]


def test_a_label_added_after_the_last_lookup_is_known(client: TestClient, gallery: Gallery) -> None:
    client.get("/api/labels")
    gallery.store.put([Entry("/new.png", "quite new", 1, 1)], gallery.store.vectors([1]))
    assert client.get("/api/items/1/neighbours", params={"label": "quite new"}).status_code == 200
    assert client.get("/api/items/1/neighbours", params={"label": "unknown"}).status_code == 422


def test_maps_are_not_computed_all_the_time(gallery: Gallery, monkeypatch: pytest.MonkeyPatch) -> None:
    disable_caches(monkeypatch)
    maps: list[tuple[float, float]] = []
    monkeypatch.setattr(space_map, "project_2d", slowed(project_2d, maps))
    with TestClient(make_app(gallery)) as client:
        drawn_map(client)
        gallery.store.remove([3])
        assert pause_after_work(lambda: client.get("/api/map"), maps) > 2


def drawn_map(client: TestClient) -> set[int]:
    """The ids on the map, once it is ready."""
    until = time.monotonic() + 120
    while (answer := client.get("/api/map")).status_code == 202 and time.monotonic() < until:
        time.sleep(0.05)
    return {point["id"] for point in answer.json()["points"]}


def test_an_item_removed_between_two_queries_is_404_or_left_out(
    client: TestClient, gallery: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors = gallery.store.vectors
    to_remove = [2]

    def remove_first(ids: list[int]) -> object:
        gallery.store.remove(to_remove)
        return vectors(ids)

    monkeypatch.setattr(gallery.store, "vectors", remove_first)
    answer = client.get("/api/items/2/neighbours")
    assert (answer.status_code, answer.json()["detail"]) == (404, NO_ITEM.format(2))
    assert client.get("/api/items/2/image").json()["detail"] == NO_ITEM.format(2)
    to_remove[:] = [3, 4]
    assert drawn_map(client) == {*range(1, 25)} - {2, 3, 4}


def test_the_map_reads_all_its_items_in_one_query(
    client: TestClient, gallery: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    entries_of = gallery.store.entries_of
    monkeypatch.setattr(gallery.store, "entries_of", lambda ids: asked.append(len(ids)) or entries_of(ids))
    drawn_map(client)
    assert asked == [24]


def test_no_request_reads_all_entries(client: TestClient, gallery: Gallery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gallery.store, "entries", lambda: pytest.fail("all entries were read"))
    for path in ("labels", "items", "items?label=red", "items/1/neighbours", "items/99/thumbnail", "health"):
        assert client.get(f"/api/{path}").status_code in (200, 404)
    assert len(drawn_map(client)) == 24


@pytest.mark.parametrize("most", [0, 1, 7, 24, 100])
def test_a_sample_is_deterministic_and_without_repetition(gallery: Gallery, most: int) -> None:
    drawn = sample_ids(gallery.store, most)
    assert len(drawn) == len(set(drawn)) == min(most, 24)
    assert set(drawn) <= set(range(1, 25))
    assert drawn == sample_ids(gallery.store, most)


class Ids:
    """The part of a store that `sample_ids` uses."""

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
def test_a_sample_changes_only_by_new_ids_that_replace_old_ones(old: set[int], new: set[int], most: int) -> None:
    before, after = drawn(old, most), drawn(old | new, most)
    assert [id for id in after if id in old] == [id for id in before if id in after]
    assert len(after) == min(most, len(old | new))


@pytest.mark.parametrize("ids", [range(1, 10_001), range(2**62, 2**62 + 10_000 * 2**22, 2**22)])
def test_every_id_is_equally_likely(ids: range) -> None:
    """For consecutive ids and for time stamps: within four standard deviations in every tenth of the range."""
    tenths = np.bincount([ids.index(id) // 1000 for id in drawn(ids, 2000)], minlength=10)
    assert np.abs(tenths - 200).max() < 4 * (200 * 0.9 * 0.8) ** 0.5


def test_concurrent_requests_share_one_lookup(gallery: Gallery, monkeypatch: pytest.MonkeyPatch) -> None:
    lookups = []

    def slowly() -> dict[str, int]:
        lookups.append(1)
        time.sleep(0.1)
        return {"red": 8}

    monkeypatch.setattr(gallery, "labels", slowly)
    with TestClient(make_app(gallery)) as client, ThreadPoolExecutor(5) as pool:
        assert {answer.status_code for answer in pool.map(client.get, ["/api/labels"] * 5)} == {200}
    assert len(lookups) == 1


def test_an_unavailable_store_is_reported_and_can_recover(
    client: TestClient, gallery: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_: object) -> None:
        raise UserError(f"cannot read {gallery.path}/items.sqlite")

    monkeypatch.setattr(caching, "PAUSE", 0)  # on a busy machine a failed lookup and the pause after it take long
    with monkeypatch.context() as patch:
        for name in ("entries_of", "vectors", "search", "counts", "ids", "__len__"):
            patch.setattr(type(gallery.store), name, unreachable)
        answers = [client.get(f"/api/{path}") for path in ("items/1/neighbours", "items/1/thumbnail", "labels", "map")]
        answers.append(client.post("/api/search", files={"file": image_bytes()}))
        for answer in answers:
            assert answer.status_code == 503
            assert answer.json()["detail"].startswith("the gallery is unavailable")
            assert "items.sqlite" not in answer.text
            assert answer.headers["retry-after"] == "5"
    assert client.get("/api/items/1/neighbours").status_code == 200
    assert len(drawn_map(client)) == 24


@pytest.mark.parametrize(
    ("error", "code"), [(UserError("no answer"), 503), (ItemNotFound(3), 503), (RuntimeError("/secret"), 500)]
)
def test_a_failed_map_is_computed_again(
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


def test_only_the_given_host_names_are_accepted(gallery: Gallery) -> None:
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


def test_an_empty_gallery_returns_empty_lists(empty: TestClient) -> None:
    assert empty.get("/api/items").json() == empty.get("/api/labels").json() == []
    assert empty.post("/api/search", files={"file": image_bytes()}).json()["neighbours"] == []


def test_names_are_folder_and_file_only() -> None:
    assert shown_name("/home/ada/private/roses/17.jpg") == "roses/17.jpg"
    assert shown_name("/17.jpg") == "17.jpg"
