"""The model card: what a model is, how it was trained and how well it does, as Markdown for model hubs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from nearkin.data.transforms import Preprocess
from nearkin.models.model import ModelSpec

NORMALIZED = {
    "always": "unit length",
    "test": "unit length (not normalised in training)",
    "never": "not normalised",
}

LIMITS = (
    "The model learnt to compare items by what distinguishes the training classes. On other kinds of data it can fail "
    "silently, and it inherits the biases of its training data. Evaluate it on your own data before you rely on it: "
    "`nearkin evaluate MODEL --data DATA`."
)


@dataclass(frozen=True)
class Training:
    """What a card says about how a model was trained.

    Attributes:
        data: name of the dataset, never a path.
        splits: number of classes and number of items of each split: train, validation, test.
        new_classes: whether the test classes were not seen in training.
        method: name of the method.
        settings: the settings of method, model and training that matter.
        backbone, before, after: scores on the test split, by name, as text: of the pretrained backbone alone, and of
            the model before and after training. Empty if not measured.
        verdict: one sentence that says what training achieved.
        chosen: which checkpoint was kept.
        chosen_on_test: whether the checkpoint was chosen on the test split.
        versions: version of each package.
        date: date when training ended.
    """

    data: str
    splits: Mapping[str, tuple[int, int]]
    new_classes: bool
    method: str
    settings: Mapping[str, object]
    backbone: Mapping[str, str]
    before: Mapping[str, str]
    after: Mapping[str, str]
    verdict: str
    chosen: str
    chosen_on_test: bool
    versions: Mapping[str, str]
    date: str


def model_card(spec: ModelSpec, training: Training) -> str:
    """The text of README.md: front matter for hubs, how to use the model, and what is known about it.

    >>> splits = {"train": (6, 48), "test": (6, 48)}
    >>> made = ("rank", {"epochs": 5}, {}, {}, {}, "Not measured.", "last epoch", False, {}, "2026-01-31")
    >>> training = Training("shoes", splits, True, *made)
    >>> print(model_card(ModelSpec("linear", dim=2, features=3), training).split("\\n\\n")[1])
    # shoes: a nearkin embedding model
    """
    data = escaped(training.data) or "unnamed data"
    kind = "vectors" if spec.preprocess is None else "images"
    sections = [
        _front_matter(spec),
        f"# {data}: a nearkin embedding model",
        f"Embeds {kind} in {spec.dim} dimensions. Similar {kind} are close together (Euclidean distance). "
        f"Trained on {data} with nearkin's method {escaped(training.method)} on {escaped(training.date)}.",
        "## Use",
        _use(spec),
        "## Inputs and outputs",
        _table(("property", "value"), _properties(spec)),
        "## Data",
        _table(("split", "classes", "items"), ((split, *sizes) for split, sizes in training.splits.items())),
        *([_which_classes(training)] if "test" in training.splits else []),
        "## Scores",
        _scores(training),
        "## Training",
        _table(("setting", "value"), {"method": training.method, **training.settings}.items()),
        "Versions: " + ", ".join(f"{escaped(name)} {escaped(version)}" for name, version in training.versions.items()),
        "## Limits",
        LIMITS,
    ]
    return "\n\n".join(sections) + "\n"


def escaped(text: object) -> str:
    """Escapes a text for Markdown: one line that shows exactly this text, also in a table cell.

    >>> print(escaped("a|b `c`\\n*d*"))
    a\\|b \\`c\\` \\*d\\*
    """
    printable = "".join(character if character.isprintable() else " " for character in str(text))
    return re.sub(r"([\\`*_\[\]<>|~$&#])", r"\\\1", " ".join(printable.split()))


def _front_matter(spec: ModelSpec) -> str:
    images = spec.preprocess is not None
    tags = ["metric-learning", *(["image-similarity"] if images else [])]
    task = ["pipeline_tag: image-feature-extraction"] if images else []
    return "\n".join(["---", "library_name: nearkin", *task, "tags:", *(f"- {tag}" for tag in tags), "---"])


def _use(spec: ModelSpec) -> str:
    images = spec.preprocess is not None
    items, shape = ('["a.jpg", "b.jpg"]', f"(2, {spec.dim})") if images else ("vectors", f"(items, {spec.dim})")
    python = [
        "import nearkin",
        'model = nearkin.load("MODEL")',
        f"embeddings = model.encode({items})  # {shape} float32",
    ]
    commands = ["nearkin index MODEL photos/ -o photos.index", "nearkin search photos.index query.jpg"]
    blocks = ["\n".join(["```python", *python, "```"]), *(["\n".join(["```sh", *commands, "```"])] if images else [])]
    note = "`MODEL` is the folder of this file. It contains only safetensors and JSON; loading it runs no code."
    return "\n\n".join([*blocks, note])


def _properties(spec: ModelSpec) -> list[tuple[str, object]]:
    return [
        *([("input", f"{spec.features} features")] if spec.preprocess is None else _image_properties(spec.preprocess)),
        ("backbone", spec.backbone),
        *([("head", "none: the embedding is the backbone's feature vector")] if spec.head == "none" else []),
        ("output", f"{spec.dim} dimensions, float32, {NORMALIZED[spec.normalize]}"),
        *([("learners", f"{spec.slices}, {spec.dim // spec.slices} dimensions each")] if spec.slices > 1 else []),
    ]


def _image_properties(preprocess: Preprocess) -> list[tuple[str, object]]:
    size, colours = preprocess.size, "grey" if preprocess.channels == 1 else "RGB"
    mean, std = (" ".join(f"{number:g}" for number in numbers) for numbers in (preprocess.mean, preprocess.std))
    resized = f"shorter side resized to {preprocess.resize} ({preprocess.interpolation}), centre crop {size} × {size}"
    return [("input", f"{colours} images: {resized}"), ("pixels", f"scaled to 0…1, mean {mean}, std {std}")]


def _which_classes(training: Training) -> str:
    if training.new_classes:
        return "The test classes were not seen in training."
    return "Some or all of the test classes were seen in training, with other items."


def _scores(training: Training) -> str:
    verdict = escaped(training.verdict)
    if not training.after:
        return verdict
    columns = {"backbone alone": training.backbone, "before": training.before, "after": training.after}
    columns = {name: column for name, column in columns.items() if column}
    rows = ((score, *(column.get(score, "–") for column in columns.values())) for score in training.after)
    note = f"Scores on the test split. Checkpoint kept: {escaped(training.chosen)}."
    if training.chosen_on_test:
        note += " **It was chosen on the test split, so these scores are optimistic.**"
    return f"{verdict}\n\n{note}\n\n{_table(('score', *columns), rows)}"


def _table(header: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> str:
    lines = [header, ("---",) * len(header), *(tuple(escaped(cell) for cell in row) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
