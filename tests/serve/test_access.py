"""Access control: no requests from other sites, and none without the token."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient
from serve.colours import image_bytes

from nearkin.errors import UserError
from nearkin.search import Gallery
from nearkin.serve.access import check_token
from nearkin.serve.app import make_app

TOKEN = "a-token_of.some~length"
HOST = "testserver"


@pytest.fixture
def locked(gallery: Gallery) -> Iterator[TestClient]:
    with TestClient(make_app(gallery, token=TOKEN)) as client:
        yield client


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.mark.parametrize(
    ("headers", "may"),
    [
        ({}, True),
        ({"Origin": f"http://{HOST}"}, True),
        ({"Origin": f"https://{HOST.upper()}"}, True),  # a proxy speaks TLS
        ({"Origin": f"http://{HOST}:8000"}, False),
        ({"Origin": "https://elsewhere.example"}, False),
        ({"Origin": f"https://{HOST}.elsewhere.example"}, False),
        ({"Origin": "null"}, False),
        ({"Origin": ""}, False),
        ({"Sec-Fetch-Site": "same-origin", "Origin": "https://images.example"}, True),  # behind a proxy
        ({"Sec-Fetch-Site": "none"}, True),
        ({"Sec-Fetch-Site": "same-site"}, False),
        ({"Sec-Fetch-Site": "cross-site"}, False),
    ],
)
def test_pages_of_other_sites_may_not_use_the_api(client: TestClient, headers: dict[str, str], may: bool) -> None:
    search = client.post("/api/search", files={"file": image_bytes()}, headers=headers)
    costly = client.get("/api/map", headers=headers)
    assert (search.status_code, costly.status_code) == ((200, 202) if may else (403, 403))
    if not may:
        assert search.json() == {"detail": "requests from other sites are refused; open the server's own page"}
    assert client.get("/", headers=headers).status_code == 200  # following a link is allowed


@pytest.mark.parametrize("path", ["/", "/page.js", "/docs", "/openapi.json", "/api/health", "/api/items/1/image", "/x"])
def test_without_the_token_nothing_is_served(locked: TestClient, path: str) -> None:
    for headers in ({}, bearer(""), bearer(TOKEN[:-1]), bearer(TOKEN + "a"), bearer("ÿ"), {"Authorization": TOKEN}):
        answer = locked.get(path, headers={key: value.encode("latin-1") for key, value in headers.items()})
        assert (answer.status_code, list(answer.json())) == (401, ["detail"])
        assert answer.headers["www-authenticate"] == "Bearer"
        assert TOKEN not in answer.text
    assert locked.get(path, headers=bearer(TOKEN)).status_code == (404 if path == "/x" else 200)


def test_a_search_needs_the_token_too(locked: TestClient) -> None:
    def search(headers: dict[str, str]) -> int:
        return locked.post("/api/search", files={"file": image_bytes()}, headers=headers).status_code

    assert (search({}), search(bearer(TOKEN)), search({"Authorization": f"bearer  {TOKEN}"})) == (401, 200, 200)


def test_a_link_sets_a_cookie_and_removes_the_token_from_the_address(locked: TestClient) -> None:
    page = locked.get("/", params={"token": TOKEN})
    assert (page.status_code, page.history) == (200, [])
    assert 'http-equiv="refresh" content="0; url=/"' in page.text
    assert TOKEN not in page.text
    assert page.headers["referrer-policy"] == "no-referrer"
    cookie = page.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert "secure" not in cookie
    assert locked.get("/api/health").status_code == 200  # the client keeps the cookie
    assert "set-cookie" not in locked.get("/").headers


def test_the_cookie_of_a_tls_page_is_secure(gallery: Gallery) -> None:
    with TestClient(make_app(gallery, token=TOKEN), base_url="https://testserver") as client:
        assert "secure" in client.get("/", params={"token": TOKEN}).headers["set-cookie"].lower()


def test_a_wrong_link_shows_a_page_that_says_so(locked: TestClient) -> None:
    page = locked.get("/", params={"token": "wrong"}, headers={"Accept": "text/html,*/*"})
    assert (page.status_code, page.headers["content-type"]) == (401, "text/html; charset=utf-8")
    assert "requires a token" in page.text
    assert "set-cookie" not in page.headers
    assert locked.get(f"/docs?token={TOKEN}").status_code == 401  # only the page takes a token in its URL


@pytest.mark.parametrize("token", ["", "short", "a" * 15, "a" * 20 + ";", "a b" * 9, "é" * 20, "a" * 20 + "\n"])
def test_an_invalid_token_is_refused_without_repeating_it(token: str) -> None:
    with pytest.raises(UserError, match="a token must be 16 or more letters") as refused:
        check_token(token)
    assert not token or token not in str(refused.value)
