"""Oxford 102 Flowers (Nilsback and Zisserman, 2008), split by image into train, validation and test."""

from __future__ import annotations

from pathlib import Path

from nearkin.data.benchmarks.listing import Entry, Listing, mat_rows, whole_number
from nearkin.data.benchmarks.registry import Benchmark, register
from nearkin.errors import UserError


@register(
    Benchmark(
        name="flowers102",
        description="Oxford 102 Flowers: 102 flower species, split by image",
        source="https://www.robots.ox.ac.uk/~vgg/data/flowers/102/",
        counts={"train": 1_020, "validation": 1_020, "test": 6_149},
        classes=102,
        layout="flowers102/ with jpg/ (from 102flowers.tgz), imagelabels.mat and setid.mat",
        folders=("flowers102", "flowers-102", "102flowers", "oxford_flowers"),
        marks=("imagelabels.mat", "setid.mat"),
    )
)
def flowers102(folder: Path) -> Listing:
    species = [label for _, (label,) in mat_rows(folder / "imagelabels.mat", "labels")]
    entries = []
    for split, variable in (("train", "trnid"), ("validation", "valid"), ("test", "tstid")):
        for place, (image,) in mat_rows(folder / "setid.mat", variable):
            number = whole_number(image, place)
            if not 1 <= number <= len(species):
                raise UserError(f"{place} of {variable}: image {number} has no label in imagelabels.mat")
            entries.append(Entry(f"image_{number:05}.jpg", species[number - 1], split, place, below="jpg"))
    names = enumerate(_NAMES.split(","), start=1)
    return Listing(entries, classes={str(number): name.strip() for number, name in names})


# The official files contain only numbers; these are the names from the dataset's web page.
_NAMES = """
pink primrose, hard-leaved pocket orchid, canterbury bells, sweet pea, english marigold, tiger lily,
moon orchid, bird of paradise, monkshood, globe thistle, snapdragon, colt's foot, king protea,
spear thistle, yellow iris, globe-flower, purple coneflower, peruvian lily, balloon flower,
giant white arum lily, fire lily, pincushion flower, fritillary, red ginger, grape hyacinth, corn poppy,
prince of wales feathers, stemless gentian, artichoke, sweet william, carnation, garden phlox,
love in the mist, mexican aster, alpine sea holly, ruby-lipped cattleya, cape flower, great masterwort,
siam tulip, lenten rose, barberton daisy, daffodil, sword lily, poinsettia, bolero deep blue, wallflower,
marigold, buttercup, oxeye daisy, common dandelion, petunia, wild pansy, primula, sunflower, pelargonium,
bishop of llandaff, gaura, geranium, orange dahlia, pink-yellow dahlia, cautleya spicata, japanese anemone,
black-eyed susan, silverbush, californian poppy, osteospermum, spring crocus, bearded iris, windflower,
tree poppy, gazania, azalea, water lily, rose, thorn apple, morning glory, passion flower, lotus, toad lily,
anthurium, frangipani, clematis, hibiscus, columbine, desert-rose, tree mallow, magnolia, cyclamen,
watercress, canna lily, hippeastrum, bee balm, ball moss, foxglove, bougainvillea, camellia, mallow,
mexican petunia, bromelia, blanket flower, trumpet creeper, blackberry lily
"""
