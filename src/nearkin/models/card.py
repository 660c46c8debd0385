"""The model card: what a model is, what it was made from and how well it does, in the Markdown that model hubs show."""

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
    "Embeddings are close if items share what distinguished the training classes. On other kinds of data the model can "
    "fail silently, and it inherits the biases of its training data. Evaluate it on your own data before you rely on "
    "it: `nearkin evaluate MODEL --data DATA`."
)


@dataclass(frozen=True)
class Training:
    """What a card says about how a model came to be.

    Attributes:
        data: the data's name, never a path.
        splits: number of classes and of items by split: train, validation, test.
        new_classes: whether no class of the test split was trained on.
        method: the method's name.
        settings: of the method, the model and the training, those that matter.
        backbone, before, after: scores of the test split as text, by name, of the pretrained backbone alone and of the
            model before and after training; empty where they were not measured.
        verdict: what training was worth, in a sentence.
        chosen: which of the models on the way this is.
        chosen_on_test: whether it was chosen on the split that the scores are of.
        versions: by package.
        date: of the end of training.
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
    """A README.md: front matter for hubs, then how to use the model and all that is known about it.

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
        f"Embeds {kind} in {spec.dim} dimensions, with similar ones close together (Euclidean distance). "
        f"Trained on {data} with nearkin's method {escaped(training.method)}, {escaped(training.date)}.",
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
    """Any text as one line of Markdown that shows just this text, also in the cell of a table.

    >>> print(escaped("a|b `c`\\n*d*"))
    a\\|b \\`c\\` \\*d\\*
    """
    printable = "".join(character if character.isprintable() else " " for character in str(text))
    return re.sub(r"([\\`*_\[\]<>|~$&#])", r"\\\1", " ".join(printable.split()))


def _front_matter(spec: ModelSpec) -> str:
    for_pictures = spec.preprocess is not None
    tags = ["metric-learning", *(["image-similarity"] if for_pictures else [])]
    task = ["pipeline_tag: image-feature-extraction"] if for_pictures else []
    return "\n".join(["---", "library_name: nearkin", *task, "tags:", *(f"- {tag}" for tag in tags), "---"])


def _use(spec: ModelSpec) -> str:
    pictures = spec.preprocess is not None
    items, shape = ('["a.jpg", "b.jpg"]', f"(2, {spec.dim})") if pictures else ("vectors", f"(items, {spec.dim})")
    python = [
        "import nearkin",
        'model = nearkin.load("MODEL")',
        f"embeddings = model.encode({items})  # {shape} float32",
    ]
    commands = ["nearkin index MODEL photos/ -o photos.index", "nearkin search photos.index query.jpg"]
    blocks = ["\n".join(["```python", *python, "```"]), *(["\n".join(["```sh", *commands, "```"])] if pictures else [])]
    said = "`MODEL` is the folder of this file. It contains safetensors and JSON only; loading it runs no code."
    return "\n\n".join([*blocks, said])


def _properties(spec: ModelSpec) -> list[tuple[str, object]]:
    return [
        *([("input", f"{spec.features} features")] if spec.preprocess is None else _of_pictures(spec.preprocess)),
        ("backbone", spec.backbone),
        *([("head", "none: the embedding is the features of the backbone")] if spec.head == "none" else []),
        ("output", f"{spec.dim} dimensions, float32, {NORMALIZED[spec.normalize]}"),
        *([("learners", f"{spec.slices}, {spec.dim // spec.slices} dimensions each")] if spec.slices > 1 else []),
    ]


def _of_pictures(preprocess: Preprocess) -> list[tuple[str, object]]:
    size, colours = preprocess.size, "grey" if preprocess.channels == 1 else "RGB"
    mean, std = (" ".join(f"{number:g}" for number in numbers) for numbers in (preprocess.mean, preprocess.std))
    resized = f"short side resized to {preprocess.resize} ({preprocess.interpolation}), centre crop {size} × {size}"
    return [("input", f"{colours} images: {resized}"), ("pixels", f"scaled to 0…1, mean {mean}, std {std}")]


def _which_classes(training: Training) -> str:
    if training.new_classes:
        return "The model was not trained on any of the test classes."
    return "The model was trained on some or all of the test classes, with other items."


def _scores(training: Training) -> str:
    verdict = escaped(training.verdict)
    if not training.after:
        return verdict
    columns = {"backbone alone": training.backbone, "before": training.before, "after": training.after}
    columns = {name: column for name, column in columns.items() if column}
    rows = ((score, *(column.get(score, "–") for column in columns.values())) for score in training.after)
    said = f"On the test split. Model kept: {escaped(training.chosen)}."
    if training.chosen_on_test:
        said += " **It was chosen on the test split, so these scores are optimistic.**"
    return f"{verdict}\n\n{said}\n\n{_table(('score', *columns), rows)}"


def _table(header: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> str:
    lines = [header, ("---",) * len(header), *(tuple(escaped(cell) for cell in row) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
