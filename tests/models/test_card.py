"""The model card: complete, and valid Markdown for any names."""

from __future__ import annotations

import datetime
import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token
from PIL import Image

import nearkin
from nearkin.data.transforms import Preprocess
from nearkin.models import Embedder, EmbeddingModel, ModelSpec
from nearkin.models.card import Training, escaped, model_card

GREY = Preprocess(size=16, resize=20, channels=1, mean=(0.5,), std=(0.25,))
IMAGES = ModelSpec("small", 8, "always", GREY, slices=2)
TRAINING = Training(
    data="shoes",
    splits={"train": (6, 48), "test": (5, 40)},
    new_classes=True,
    method="rank",
    settings={"alpha": 2.0, "epochs": 5},
    backbone={"recall@1": "0.5000"},
    before={"recall@1": "0.2500"},
    after={"recall@1": "0.7500", "nmi": "0.5000", "queries": "24"},
    verdict="Recall@1 on unseen classes: 0.500 → 0.750.",
    chosen="last epoch",
    chosen_on_test=False,
    versions={"nearkin": "0.1.0", "torch": "2.13.0"},
    date="2026-01-31",
)


@cache
def tokens(card: str) -> list[Token]:
    return MarkdownIt("commonmark").enable("table").parse(card.split("---\n", 2)[2])


def shown(token: Token) -> str:
    """The text that a reader sees of an inline token."""
    return "".join(child.content for child in token.children or [])


def tables(card: str) -> list[list[list[str]]]:
    found: list[list[list[str]]] = []
    inside = False
    for token in tokens(card):
        if token.type == "table_open":
            found.append([])
        inside = {"th_open": True, "td_open": True, "th_close": False, "td_close": False}.get(token.type, inside)
        if token.type == "tr_open":
            found[-1].append([])
        if inside and token.type == "inline":
            found[-1][-1].append(shown(token))
    return found


def test_a_card_has_all_facts() -> None:
    card = model_card(IMAGES, TRAINING)
    properties, data, scores, training = ({row[0]: row[1:] for row in table} for table in tables(card))
    assert properties["input"] == ["grey images: shorter side resized to 20 (bicubic), centre crop 16 × 16"]
    assert properties["pixels"] == ["scaled to 0…1, mean 0.5, std 0.25"]
    assert properties["output"] == ["8 dimensions, float32, unit length"]
    assert properties["learners"] == ["2, 4 dimensions each"]
    assert data == {"split": ["classes", "items"], "train": ["6", "48"], "test": ["5", "40"]}
    assert (
        scores["recall@1"] == ["0.5000", "0.2500", "0.7500"]
        and scores["nmi"] == ["–", "–", "0.5000"]
        and scores["queries"] == ["–", "–", "24"]
    )
    assert training == {"setting": ["value"], "method": ["rank"], "alpha": ["2.0"], "epochs": ["5"]}
    assert "The test classes were not seen in training." in card
    assert "nearkin 0.1.0, torch 2.13.0" in card and "2026-01-31" in card
    assert "## Limits" in card and "optimistic" not in card


def test_front_matter_is_what_hubs_read() -> None:
    front = yaml.safe_load(model_card(IMAGES, TRAINING).split("---\n")[1])
    assert front["library_name"] == "nearkin" and front["tags"] == ["metric-learning", "image-similarity"]
    vectors = yaml.safe_load(model_card(ModelSpec("mlp", 8, features=3), TRAINING).split("---\n")[1])
    assert vectors == {"library_name": "nearkin", "tags": ["metric-learning"]}


def test_scores_chosen_on_test_are_called_optimistic() -> None:
    assert "optimistic" in model_card(IMAGES, replace(TRAINING, chosen_on_test=True))
    assert "test classes were seen in training, with other items" in model_card(
        IMAGES, replace(TRAINING, new_classes=False)
    )


def test_a_card_says_what_was_not_measured() -> None:
    card = model_card(
        IMAGES, replace(TRAINING, before={}, after={}, verdict="Not measured.", splits={"train": (6, 48)})
    )
    assert "Not measured" in card and "test classes" not in card.split("## Limits")[0]


@pytest.mark.parametrize(
    ("normalize", "said"), [("test", "unit length (not normalised in"), ("never", "float32, not normalised")]
)
def test_a_card_says_how_embeddings_are_normalized(normalize: str, said: str) -> None:
    assert said in model_card(replace(IMAGES, normalize=normalize), TRAINING)


def test_a_card_says_that_there_is_no_head() -> None:
    said = "| head | none: the embedding is the backbone's feature vector |"
    assert said in model_card(ModelSpec("mlp", 512, features=3, head="none"), TRAINING)
    assert said not in model_card(ModelSpec("mlp", 512, features=3), TRAINING)


@pytest.mark.parametrize("spec", [IMAGES, ModelSpec("mlp", 8, features=3)])
def test_the_python_example_works(spec: ModelSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Embedder(EmbeddingModel(spec)).save(Path("MODEL"))
    for name in ("a.jpg", "b.jpg"):
        Image.new("RGB", (30, 20)).save(name)
    lines = model_card(spec, TRAINING).split("```python\n")[1].split("```")[0]
    assert len(lines.splitlines()) == 3
    scope: dict[str, Any] = {"vectors": np.ones((2, 3))}
    exec(lines, scope)
    assert scope["embeddings"].shape == (2, 8)


@settings(max_examples=40)
@given(name=st.text(max_size=30) | st.text("|`\\*_[]()<>#~&;!$\n\r \tab-=+1.:", max_size=30))
@example("a|b\n# c\n```\n---")
@example("\\|`<script>` ![x](y) &amp; C#")
@example("trailing #")
@example("ends with \\")
def test_any_name_is_shown_unchanged(name: str) -> None:
    card = model_card(IMAGES, replace(TRAINING, data=name, settings={"loss": name, name: 1}, method=name))
    plain = " ".join("".join(c if c.isprintable() else " " for c in name).split())
    assert tables(card)[3][1:] == [["method", plain], ["loss", plain], [plain, "1"]]
    heading = next(shown(token) for token in tokens(card) if token.type == "inline")
    assert heading == f"{plain or 'unnamed data'}: a nearkin embedding model"
    structure = [token.type for token in tokens(card) if token.type in ("heading_open", "fence", "table_open")]
    assert len(structure) == 7 + 2 + 4
    assert "html_block" not in [token.type for token in tokens(card)]
    card.encode()


def test_escaping_leaves_plain_words_alone() -> None:
    assert escaped("CUB-200 (2011), v1.0: all birds!") == "CUB-200 (2011), v1.0: all birds!"


def test_training_writes_the_card_into_the_model_folder(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "my shoes|new.npz",
        vectors=np.random.default_rng(0).normal(size=(48, 4)),
        labels=np.repeat(np.arange(8), 6),
    )
    out = tmp_path / "home" / "run"
    run = nearkin.train(
        tmp_path / "my shoes|new.npz", "triplet", out, epochs=1, dim=4, batch_size=8, validation=0.5, device="cpu",
        margin=0.125, keep="best-on-test",
    )  # fmt: skip
    card = (run.model_folder / "README.md").read_text(encoding="utf-8")
    data, scores, training = ({row[0]: row[1:] for row in table} for table in tables(card)[1:])
    assert data == {
        "split": ["classes", "items"], "train": ["2", "12"], "validation": ["2", "12"], "test": ["4", "24"],
    }  # fmt: skip
    written = json.loads(run.scores_file.read_text())
    assert scores["recall@1"] == [f"{written[when]['recall@1']:.4f}" for when in ("before", "after")]
    assert training["method"] == ["triplet"] and training["margin"] == ["0.125"] and training["epochs"] == ["1"]
    assert "optimistic" in card and r"my shoes\|new" in card
    assert f"torch {torch.__version__}" in card.replace("\\", "") and datetime.date.today().isoformat() in card
    assert str(tmp_path) not in card and "home" not in card
    assert Embedder.load(run.model_folder).encode(np.ones((2, 4))).shape == (2, 4)
