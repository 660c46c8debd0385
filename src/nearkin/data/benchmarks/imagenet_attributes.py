"""ImageNet Attributes (Rippel et al., 2016, appendix C): 90 classes of ImageNet, some of whose images have attributes.

Taken from a local copy of ILSVRC 2012: its training images are "train", its validation images "test". The paper counts
116,236 images and does not say whether these include the 4,500 for validation; both counts are accepted.

The attributes (Russakovsky and Fei-Fei, 2010: 25 attributes for about 25 training images per class) are not part of
ILSVRC. They are read from ``attributes.csv`` next to ``train/``, if it exists. It has a column ``image`` with names
such as ``n02123045_1234`` and one column per attribute with the labels of that dataset: 1 (present), -1 (absent) or
0 (ambiguous, read as absent).
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from nearkin.data.benchmarks.listing import Entry, Listing
from nearkin.data.benchmarks.registry import Benchmark, register
from nearkin.data.folder import images_below
from nearkin.errors import UserError
from nearkin.files import open_regular

HAS = {"1": "1", "0": "0", "-1": "0"}
UNKNOWN = ""


@register(
    Benchmark(
        name="imagenet-attributes",
        description="ImageNet Attributes: the 90 classes of ImageNet with attributes, split by image",
        source="https://image-net.org/download-images.php (ILSVRC 2012)",
        counts={"train": 116_236, "test": 4_500},
        distributed={"train": 116_236 - 4_500},
        classes=90,
        layout="imagenet/ with train/<wnid>/ and val/<wnid>/ (val sorted into folders like train) "
        "and, for the attributes, attributes.csv (image,<attribute>,...)",
        folders=("imagenet-attributes", "imagenet", "ImageNet", "ILSVRC2012", "ILSVRC/Data/CLS-LOC"),
        marks=("train/n01693334",),
    )
)
def imagenet_attributes(folder: Path) -> Listing:
    classes = dict(entry.strip().split(" ", 1) for entry in _CLASSES.split(","))
    entries = [
        Entry(str(path.relative_to(folder)), wnid, split, place=str(path))
        for split, below in (("train", "train"), ("test", "val"))
        for wnid in classes
        for path in images_below(folder / below / wnid)
    ]
    annotations = folder / "attributes.csv"
    return Listing(entries, classes, _attributes(annotations, entries) if annotations.is_file() else {})


def _attributes(file: Path, entries: Sequence[Entry]) -> dict[str, list[str]]:
    """For every attribute, one value per entry: "1", "0", or "" if the image is not annotated."""
    try:
        with open_regular(file) as raw, io.TextIOWrapper(raw, "utf-8-sig", newline="") as stream:
            (first, *names), *rows = csv.reader(stream, strict=True)
    except (UnicodeDecodeError, ValueError, csv.Error) as error:
        raise UserError(
            f"{file} is not a readable CSV ({error}); its first line must name image,<attribute>,..."
        ) from error
    if first != "image" or not names:
        raise UserError(f"{file}, line 1: expected the column names image,<attribute>,...")
    known: dict[str, list[str]] = {}
    for line, (image, *labels) in ((line, row) for line, row in enumerate(rows, start=2) if row):
        if len(labels) != len(names) or not HAS.keys() >= set(labels):
            raise UserError(f"{file}, line {line}: expected {len(names)} labels after the image, each 1, 0 or -1")
        known[Path(image).stem] = [HAS[label] for label in labels]
    images = [Path(entry.path).stem for entry in entries]
    if images and known.keys().isdisjoint(images):
        raise UserError(f"{file} names none of the images in the dataset; it must name them like {images[0]}")
    of_each = [known.get(image, [UNKNOWN] * len(names)) for image in images]
    return {name: [labels[column] for labels in of_each] for column, name in enumerate(names)}


_CLASSES = """
n01693334 green lizard, n01773549 barn spider, n01773797 garden spider, n01796340 ptarmigan, n01872401 echidna,
n01873310 platypus, n01882714 koala, n01883070 wombat, n02071294 killer whale, n02074367 dugong,
n02088238 basset, n02088364 beagle, n02088466 bloodhound, n02088632 bluetick, n02090379 redbone,
n02091134 whippet, n02091635 otterhound, n02092002 Scottish deerhound, n02096294 Australian terrier,
n02100583 vizsla, n02100735 English setter, n02101556 clumber, n02102480 Sussex spaniel, n02104029 kuvasz,
n02104365 schipperke, n02105056 groenendael, n02105162 malinois, n02105251 briard, n02105505 komondor,
n02106030 collie, n02109047 Great Dane, n02109525 Saint Bernard, n02110806 basenji, n02110958 pug,
n02112350 keeshond, n02115913 dhole, n02119789 kit fox, n02123045 tabby, n02123394 Persian cat,
n02124075 Egyptian cat, n02125311 cougar, n02128925 jaguar, n02129165 lion, n02130308 cheetah, n02326432 hare,
n02342885 hamster, n02361337 marmot, n02391049 zebra, n02410509 bison, n02422106 hartebeest, n02422699 impala,
n02423022 gazelle, n02441942 weasel, n02442845 mink, n02443114 polecat, n02443484 black-footed ferret,
n02444819 otter, n02445715 skunk, n02447366 badger, n02480495 orangutan, n02480855 gorilla,
n02481823 chimpanzee, n02483708 siamang, n02484975 guenon, n02486261 patas, n02486410 baboon,
n02487347 macaque, n02488291 langur, n02488702 colobus, n02500267 indri, n02509815 lesser panda,
n02536864 coho, n02802426 basketball, n02808440 bathtub, n02910353 buckle, n03249569 drum,
n03325584 feather boa, n03721384 marimba, n03977966 police van, n03982430 pool table, n04118776 rule,
n04228054 ski, n04447861 toilet seat, n07615774 ice lolly, n07745940 strawberry, n07873807 pizza,
n07875152 potpie, n07880968 burrito, n11939491 daisy, n12267677 acorn
"""
