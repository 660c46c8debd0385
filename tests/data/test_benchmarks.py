"""Every benchmark is read from a tiny copy of its official layout, written here."""

from __future__ import annotations

import os
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from nearkin.data.benchmarks import benchmarks, find, imagenet_attributes, is_benchmark, load_benchmark, registry
from nearkin.data.dataset import Dataset
from nearkin.errors import UserError


def write(folder: Path, texts: dict[str, str] | None = None, images: list[str] | None = None) -> Path:
    for name, text in (texts or {}).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    for name in images or []:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


def cells(values: list[str]) -> np.ndarray:
    """A MATLAB cell array of strings."""
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def structs(**columns: list) -> np.ndarray:
    """A MATLAB struct array with the given fields."""
    rows = list(zip(*columns.values(), strict=True))
    array = np.zeros(len(rows), dtype=[(name, object) for name in columns])
    array[:] = rows
    return array


def write_cub(root: Path) -> Path:
    names = {
        1: "001.Black_footed_Albatross",
        100: "100.Brown_Pelican",
        101: "101.White_Pelican",
        200: "200.Yellow_throat",
    }
    images = [f"{name}/bird_{i}.jpg" for name in names.values() for i in (1, 2)]
    numbers = [number for number in names for _ in (1, 2)]
    return write(
        root / "CUB_200_2011",
        {
            "images.txt": "".join(f"{i} {path}\n" for i, path in enumerate(images, 1)),
            "image_class_labels.txt": "".join(f"{i} {number}\n" for i, number in enumerate(numbers, 1)),
            "classes.txt": "".join(f"{number} {name}\n" for number, name in names.items()),
        },
        [f"images/{path}" for path in images],
    )


CAR_CLASSES = [f"Car Model {number} 2012" for number in range(1, 197)]
BOX = {"bbox_x1": [1, 1], "bbox_y1": [1, 1], "bbox_x2": [9, 9], "bbox_y2": [9, 9]}


def write_cars_single_file(root: Path) -> Path:
    folder = write(root / "cars196", images=["car_ims/000001.jpg", "car_ims/016185.jpg"])
    paths = ["car_ims/000001.jpg", "car_ims/016185.jpg"]
    annotations = structs(relative_im_path=paths, **BOX, **{"class": [98, 99]}, test=[0, 1])
    savemat(folder / "cars_annos.mat", {"annotations": annotations, "class_names": cells(CAR_CLASSES)})
    return folder


def write_cars_devkit(root: Path, test_annotations: str = "devkit/cars_test_annos_withlabels.mat") -> Path:
    files = ["00001.jpg", "00002.jpg"]
    folder = write(root / "cars196", images=[f"cars_{split}/{file}" for split in ("train", "test") for file in files])
    (folder / "devkit").mkdir()
    savemat(folder / "devkit/cars_meta.mat", {"class_names": cells(CAR_CLASSES)})
    for name, classes in (("devkit/cars_train_annos.mat", [1, 196]), (test_annotations, [196, 98])):
        savemat(folder / name, {"annotations": structs(**BOX, **{"class": classes}, fname=files)})
    return folder


def write_sop(root: Path) -> Path:
    header = "image_id class_id super_class_id path\n"
    return write(
        root / "Stanford_Online_Products",
        {
            "Ebay_train.txt": header + "1 1 1 bicycle_final/111_0.JPG\n2 1 1 bicycle_final/111_1.JPG\n"
            "3 2 4 coffee_maker_final/112_0.JPG\n",
            "Ebay_test.txt": header + "4 11319 1 bicycle_final/113_0.JPG\n",
        },
        [f"bicycle_final/{name}.JPG" for name in ("111_0", "111_1", "113_0")] + ["coffee_maker_final/112_0.JPG"],
    )


INSHOP_ROWS = [
    ("img/WOMEN/Dresses/id_00000002/02_1_front.jpg", "id_00000002", "train"),
    ("img/WOMEN/Dresses/id_00000002/02_2_side.jpg", "id_00000002", "train"),
    ("img/WOMEN/Blouses_Shirts/id_00000001/02_1_front.jpg", "id_00000001", "query"),
    ("img/WOMEN/Blouses_Shirts/id_00000001/02_3_back.jpg", "id_00000001", "gallery"),
    ("img/MEN/Denim/id_00000080/01_1_front.jpg", "id_00000080", "gallery"),
]


def write_inshop(root: Path, partition: str = "Eval/list_eval_partition.txt", below: str = "") -> Path:
    header = f"{len(INSHOP_ROWS)}\nimage_name item_id evaluation_status\n"
    rows = "".join(f"{path:<70} {item} {status}\n" for path, item, status in INSHOP_ROWS)
    return write(root / "inshop", {partition: header + rows}, [below + path for path, _, _ in INSHOP_ROWS])


def write_vehicleid(root: Path) -> Path:
    lists = {
        "train_list": "0000001 12\n0000002 3\n",
        "test_list_800": "0000003 20\n",
        "test_list_1600": "0000003 20\n0000004 21\n",
        "test_list_2400": "0000003 20\n0000004 21\n0000005 22\n",
    }
    texts = {f"train_test_split/{name}.txt": text for name, text in lists.items()}
    return write(root / "VehicleID_V1.0", texts, [f"image/000000{i}.jpg" for i in range(1, 6)])


def write_flowers(root: Path) -> Path:
    folder = write(root / "flowers102", images=[f"jpg/image_0000{i}.jpg" for i in range(1, 6)])
    savemat(folder / "imagelabels.mat", {"labels": np.array([[77, 77, 1, 102, 1]], dtype=np.uint8)})
    ids = {"trnid": [[5, 1]], "valid": [[2]], "tstid": [[3, 4]]}
    savemat(folder / "setid.mat", {name: np.array(value, dtype=np.uint16) for name, value in ids.items()})
    return folder


def write_pets(root: Path) -> Path:
    return write(
        root / "pets37",
        {
            "annotations/trainval.txt": "american_bulldog_100 2 2 1\nAbyssinian_100 1 1 1\n",
            "annotations/test.txt": "Abyssinian_201 1 1 1\nyorkshire_terrier_9 37 2 25\n",
        },
        [
            f"images/{n}.jpg"
            for n in ("american_bulldog_100", "Abyssinian_100", "Abyssinian_201", "yorkshire_terrier_9")
        ],
    )


def write_dogs(root: Path, lists: str = "") -> Path:
    train = ["n02098105-soft-coated_wheaten_terrier/n02098105_1.jpg", "n02085620-Chihuahua/n02085620_5.jpg"]
    test = ["n02085620-Chihuahua/n02085620_7.jpg"]
    folder = write(root / "dogs120", images=[f"Images/{path}" for path in train + test])
    (folder / lists).mkdir(exist_ok=True)
    for name, paths, labels in (("train", train, [51, 1]), ("test", test, [1])):
        content = {
            "file_list": cells(paths).reshape(-1, 1),
            "labels": np.array(labels, dtype=float).reshape(-1, 1),
        }
        savemat(folder / lists / f"{name}_list.mat", content)
    return folder


def write_imagenet(root: Path) -> Path:
    images = ["n01693334/n01693334_10.JPEG", "n01693334/n01693334_9.JPEG", "n12267677/n12267677_5.JPEG"]
    others = ["train/n01440764/n01440764_1.JPEG", "val/n01440764/ILSVRC2012_val_00000293.JPEG"]
    return write(
        root / "imagenet",
        {"attributes.csv": "image,striped,brown\nn12267677_5,-1,1\nn01693334_10.JPEG,1,0\nn09999999_1,1,1\n"},
        [f"train/{path}" for path in images] + ["val/n12267677/ILSVRC2012_val_00000007.JPEG"] + others,
    )


WRITERS = {
    "cub200": write_cub,
    "cars196": write_cars_devkit,
    "sop": write_sop,
    "inshop": write_inshop,
    "vehicleid": write_vehicleid,
    "vehicleid:small": write_vehicleid,
    "vehicleid:medium": write_vehicleid,
    "vehicleid:large": write_vehicleid,
    "flowers102": write_flowers,
    "pets37": write_pets,
    "dogs120": write_dogs,
    "imagenet-attributes": write_imagenet,
}


def load(name: str, folder: Path) -> Dataset:
    return load_benchmark(name, folder, check_counts=False)


def class_names(dataset: Dataset) -> list[str]:
    return [dataset.classes[label] for label in dataset.labels]


def replace_in(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def test_cub_is_trained_on_classes_up_to_100_and_tested_on_the_rest(tmp_path: Path) -> None:
    birds = load("cub200", write_cub(tmp_path))
    assert birds.classes == ["Black footed Albatross", "Brown Pelican", "White Pelican", "Yellow throat"]
    assert birds.labels.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert birds.split is not None
    assert birds.split.tolist() == ["train"] * 4 + ["test"] * 4
    assert birds.items.names()[0].endswith("CUB_200_2011/images/001.Black_footed_Albatross/bird_1.jpg")
    assert birds.is_query is None


def test_cub_joins_labels_by_image_id_not_by_line(tmp_path: Path) -> None:
    folder = write_cub(tmp_path)
    labels = folder / "image_class_labels.txt"
    labels.write_text("\n".join(reversed(labels.read_text().split("\n"))))
    assert load("cub200", folder).labels.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_cars_in_a_single_file_are_split_by_class(tmp_path: Path) -> None:
    cars = load("cars196", write_cars_single_file(tmp_path))
    assert cars.split is not None
    assert cars.split.tolist() == ["train", "test"]
    assert class_names(cars) == ["Car Model 98 2012", "Car Model 99 2012"]
    assert cars.items.names()[0].endswith("cars196/car_ims/000001.jpg")


@pytest.mark.parametrize("place", ["devkit/cars_test_annos_withlabels.mat", "cars_test_annos_withlabels.mat"])
def test_cars_devkit_mixes_the_official_halves_and_splits_by_class(tmp_path: Path, place: str) -> None:
    cars = load("cars196", write_cars_devkit(tmp_path, place))
    assert cars.split is not None
    assert cars.split.tolist() == ["train", "test", "test", "train"]
    assert cars.labels.tolist() == [0, 195, 195, 97]
    assert [Path(name).parent.name for name in cars.items.names()] == ["cars_train"] * 2 + ["cars_test"] * 2


def test_sop_keeps_the_super_class(tmp_path: Path) -> None:
    products = load("sop", write_sop(tmp_path))
    assert products.classes == ["bicycle 1", "coffee maker 2", "bicycle 11319"]
    assert products.labels.tolist() == [0, 0, 1, 2]
    assert products.attributes["super_class"].tolist() == ["bicycle", "bicycle", "coffee maker", "bicycle"]
    assert products.split is not None
    assert products.split.tolist() == ["train"] * 3 + ["test"]


@pytest.mark.parametrize("partition", ["Eval/list_eval_partition.txt", "list_eval_partition.txt"])
@pytest.mark.parametrize("below", ["", "Img/"])
def test_inshop_has_query_and_gallery_masks_in_its_test_split(tmp_path: Path, partition: str, below: str) -> None:
    clothes = load("inshop", write_inshop(tmp_path, partition, below))
    assert clothes.split is not None
    assert clothes.is_query is not None
    assert clothes.is_gallery is not None
    assert clothes.split.tolist() == ["train", "train", "test", "test", "test"]
    assert clothes.is_query.tolist() == [False, False, True, False, False]
    assert clothes.is_gallery.tolist() == [False, False, False, True, True]
    assert class_names(clothes) == [item for _, item, _ in INSHOP_ROWS]
    assert clothes.classes == sorted(clothes.classes)
    assert clothes.attributes["category"].tolist()[2:] == ["WOMEN/Blouses_Shirts"] * 2 + ["MEN/Denim"]


@pytest.mark.parametrize(("name", "tested"), [("", 1), (":small", 1), (":medium", 2), (":large", 3)])
def test_vehicleid_variants_differ_in_their_test_set(tmp_path: Path, name: str, tested: int) -> None:
    vehicles = load(f"vehicleid{name}", write_vehicleid(tmp_path))
    assert vehicles.name == f"vehicleid{name or ':small'}"
    assert vehicles.split is not None
    assert vehicles.split.tolist() == ["train"] * 2 + ["test"] * tested
    assert class_names(vehicles) == ["12", "3", "20", "21", "22"][: 2 + tested]
    assert vehicles.classes[:2] == ["3", "12"]


def test_flowers_have_three_splits_and_names(tmp_path: Path) -> None:
    flowers = load("flowers102", write_flowers(tmp_path))
    assert len(set(flowers.classes)) == 102
    assert flowers.split is not None
    assert flowers.split.tolist() == ["train", "train", "validation", "test", "test"]
    assert [Path(name).name[6:11] for name in flowers.items.names()] == [
        "00005",
        "00001",
        "00002",
        "00003",
        "00004",
    ]
    primrose, passion, lily = "pink primrose", "passion flower", "blackberry lily"
    assert class_names(flowers) == [primrose, passion, passion, primrose, lily]


def test_pets_know_their_species(tmp_path: Path) -> None:
    pets = load("pets37", write_pets(tmp_path))
    assert pets.classes == ["Abyssinian", "american bulldog", "yorkshire terrier"]
    assert pets.labels.tolist() == [1, 0, 0, 2]
    assert pets.attributes["species"].tolist() == ["dog", "cat", "cat", "dog"]
    assert pets.split is not None
    assert pets.split.tolist() == ["train", "train", "test", "test"]


@pytest.mark.parametrize("lists", ["", "lists"])
def test_dogs_are_listed_at_the_root_or_in_lists(tmp_path: Path, lists: str) -> None:
    dogs = load("dogs120", write_dogs(tmp_path, lists))
    assert dogs.classes == ["Chihuahua", "soft-coated wheaten terrier"]
    assert dogs.labels.tolist() == [1, 0, 0]
    assert dogs.split is not None
    assert dogs.split.tolist() == ["train", "train", "test"]


def test_imagenet_attributes_are_90_classes_whose_images_may_have_attributes(tmp_path: Path) -> None:
    folder = write_imagenet(tmp_path)
    images = load("imagenet-attributes", folder)
    assert len(images.classes) == len(set(images.classes)) == 90
    assert class_names(images) == ["green lizard", "green lizard", "acorn", "acorn"]  # not the tench
    assert images.split is not None
    assert images.split.tolist() == ["train"] * 3 + ["test"]
    assert {name: column.tolist() for name, column in images.attributes.items()} == {
        "striped": ["1", "", "0", ""],
        "brown": ["0", "", "1", ""],
    }
    (folder / "attributes.csv").unlink()
    assert load("imagenet-attributes", folder).attributes == {}


def test_imagenet_attributes_are_the_classes_of_the_paper(tmp_path: Path) -> None:
    timm = find_spec("timm")
    assert timm is not None and timm.origin is not None
    lemmas = (Path(timm.origin).parent / "data/_info/imagenet_synset_to_lemma.txt").read_text()
    name_of = {wnid: words.split(",")[0] for wnid, words in (line.split("\t") for line in lemmas.splitlines())}
    names = load("imagenet-attributes", write_imagenet(tmp_path)).classes
    wnids = [entry.split()[0] for entry in imagenet_attributes._CLASSES.split(",")]
    assert wnids == sorted(wnids)  # the order of the classes is that of appendix C
    assert names == [name_of[wnid] for wnid in wnids]


def test_imagenet_attributes_are_found_in_the_layout_of_kaggle(tmp_path: Path) -> None:
    (tmp_path / "ILSVRC" / "Data").mkdir(parents=True)
    write_imagenet(tmp_path).rename(tmp_path / "ILSVRC" / "Data" / "CLS-LOC")
    assert len(load("imagenet-attributes", tmp_path)) == 4


@pytest.mark.parametrize("train", [116_236, 111_736])
def test_imagenet_attributes_accepts_both_published_counts(train: int) -> None:
    benchmark, _ = registry.registered("imagenet-attributes")
    assert train in (benchmark.counts["train"], benchmark.distributed["train"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "first line must name image"),
        ("name,striped\n", "line 1: expected the column names image"),
        ("image\n", "line 1: expected the column names image"),
        ("image,striped\nn01693334_10,2\n", "line 2: expected 1 labels after the image, each 1, 0 or -1"),
        ("image,striped\n\nn01693334_10,1,1\n", "line 3: expected 1 labels"),
        ("image,striped\nn09999999_1,1\n", "names none of the images in the dataset"),
    ],
)
def test_malformed_attributes_are_named(tmp_path: Path, text: str, message: str) -> None:
    folder = write_imagenet(tmp_path)
    (folder / "attributes.csv").write_text(text)
    with pytest.raises(UserError, match=rf"attributes\.csv.*{message}"):
        load("imagenet-attributes", folder)


def test_attributes_without_images_are_reported_by_the_count(tmp_path: Path) -> None:
    (tmp_path / "imagenet" / "train" / "n01693334").mkdir(parents=True)
    (tmp_path / "imagenet" / "attributes.csv").write_text("image,striped\nn01693334_10,1\n")
    with pytest.raises(UserError, match="0"):
        load_benchmark("imagenet-attributes", tmp_path)


def test_every_benchmark_is_tested_here() -> None:
    assert {benchmark.name for benchmark in benchmarks()} | {"vehicleid"} == set(WRITERS)
    assert all(is_benchmark(name) for name in WRITERS)
    assert not is_benchmark("photos")


@pytest.mark.parametrize("name", WRITERS)
def test_every_benchmark_is_found_in_its_folder_and_in_the_folder_above(tmp_path: Path, name: str) -> None:
    folder = WRITERS[name](tmp_path)
    assert find(name, folder) == folder
    assert find(name, tmp_path) == folder
    assert load(name, tmp_path).items.names() == load(name, folder).items.names()


@pytest.mark.parametrize("name", WRITERS)
def test_only_vehicles_are_evaluated_with_random_galleries(tmp_path: Path, name: str) -> None:
    dataset = load(name, WRITERS[name](tmp_path))
    assert dataset.protocol == ("random-gallery" if name.startswith("vehicleid") else "")


@pytest.mark.parametrize("name", WRITERS)
def test_every_benchmark_refuses_other_counts_than_the_published_ones(tmp_path: Path, name: str) -> None:
    folder = WRITERS[name](tmp_path)
    with pytest.raises(UserError, match=r"1?[0-9] train images instead of [0-9]+,[0-9]{3}.*check_counts=False"):
        load_benchmark(name, folder)


def publish(monkeypatch: pytest.MonkeyPatch, name: str, counts: dict[str, int]) -> None:
    benchmark, loader = registry.registered(name)
    monkeypatch.setitem(registry._registry, name, (replace(benchmark, counts=counts), loader))


def test_published_counts_are_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(monkeypatch, "inshop", {"train": 2, "test": 3, "query": 1, "gallery": 2})
    assert len(load_benchmark("inshop", write_inshop(tmp_path))) == 5


def test_a_wrong_gallery_is_named_with_both_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(monkeypatch, "inshop", {"train": 2, "test": 3, "query": 1, "gallery": 12_612})
    with pytest.raises(UserError, match="lists 2 gallery images instead of 12,612: if the download is incomplete"):
        load_benchmark("inshop", write_inshop(tmp_path))


def test_an_unknown_name_gets_a_hint() -> None:
    with pytest.raises(UserError, match="dataset 'cub20' is unknown; did you mean 'cub200'"):
        load_benchmark("cub20")
    with pytest.raises(UserError, match="did you mean 'vehicleid:small'"):
        find("vehicleid:smal")


def test_a_missing_dataset_is_explained(tmp_path: Path) -> None:
    assert find("sop", tmp_path) is None
    with pytest.raises(UserError) as raised:
        load_benchmark("sop", tmp_path)
    for part in (str(tmp_path), "https://cvgl.stanford.edu", "Stanford_Online_Products/", "NEARKIN_DATA"):
        assert part in str(raised.value)


def test_nearkin_data_lists_the_folders_to_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_cub(tmp_path / "second" / "cub200")
    monkeypatch.setenv("NEARKIN_DATA", os.pathsep.join([str(tmp_path / "first"), str(tmp_path / "second")]))
    assert find("cub200") == folder
    with pytest.raises(UserError, match=r"was not found in .*first and .*second"):
        load_benchmark("sop")
    assert find("cub200", tmp_path / "first") is None  # only an explicit root is searched


def test_data_and_the_home_folder_are_searched_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NEARKIN_DATA", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    assert find("sop") is None
    at_home = write_sop(tmp_path / "home" / "datasets")
    assert find("sop") == at_home
    write_sop(tmp_path / "work" / "data")
    assert find("sop") == Path("data/Stanford_Online_Products")


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("cub200", "classes.txt"),
        ("cub200", "images.txt"),
        ("cars196", "devkit/cars_meta.mat"),
        ("cars196", "devkit/cars_test_annos_withlabels.mat"),
        ("sop", "Ebay_test.txt"),
        ("vehicleid:large", "train_test_split/test_list_2400.txt"),
        ("flowers102", "setid.mat"),
        ("pets37", "annotations/test.txt"),
        ("dogs120", "test_list.mat"),
    ],
)
def test_a_missing_annotation_file_is_named(tmp_path: Path, name: str, file: str) -> None:
    folder = WRITERS[name](tmp_path)
    (folder / file).unlink()
    with pytest.raises(UserError, match=f"{file} is missing"):
        load(name, folder)


def test_missing_images_are_counted_and_the_first_is_named(tmp_path: Path) -> None:
    folder = write_sop(tmp_path)
    (folder / "bicycle_final/111_1.JPG").unlink()
    (folder / "coffee_maker_final/112_0.JPG").unlink()
    (folder / "coffee_maker_final").rmdir()
    with pytest.raises(UserError, match=r"sop: 2 of the 4 listed images are missing, the first is .*111_1\.JPG"):
        load("sop", folder)


@pytest.mark.parametrize(
    ("name", "file", "old", "new", "message"),
    [
        ("cub200", "images.txt", "\n3 ", "\n3 a ", r"images\.txt, line 3: expected 'image_id image_name'"),
        ("cub200", "images.txt", "\n8 ", "\n9 ", r"images\.txt, line 8: image 9 has no class"),
        (
            "cub200",
            "image_class_labels.txt",
            "2 1\n",
            "2 one\n",
            "line 2: expected an integer, found 'one'",
        ),
        ("cub200", "classes.txt", "\n101 ", "\n102 ", r"images\.txt, line 5: class 101 is not among the 4"),
        (
            "sop",
            "Ebay_train.txt",
            "super_class_id",
            "super",
            r"Ebay_train\.txt, line 1: expected the column names",
        ),
        ("sop", "Ebay_test.txt", "4 11319 1 ", "4 x 1 ", r"Ebay_test\.txt, line 2: expected an integer"),
        (
            "inshop",
            "Eval/list_eval_partition.txt",
            "query",
            "test",
            "line 5: expected train, query or gallery",
        ),
        ("inshop", "Eval/list_eval_partition.txt", " item_id", "", "line 2: expected the column names"),
        ("vehicleid", "train_test_split/train_list.txt", " 3\n", "\n", r"train_list\.txt, line 2: expected"),
        ("pets37", "annotations/test.txt", "37 2 25", "37 3 25", "line 2: expected species 1"),
    ],
)
def test_a_malformed_line_is_named(tmp_path: Path, name: str, file: str, old: str, new: str, message: str) -> None:
    folder = WRITERS[name](tmp_path)
    replace_in(folder / file, old, new)
    with pytest.raises(UserError, match=message):
        load(name, folder)


def test_an_empty_list_is_refused_where_a_header_is_expected(tmp_path: Path) -> None:
    folder = write_sop(tmp_path)
    (folder / "Ebay_train.txt").write_text("")
    with pytest.raises(UserError, match="line 1: expected the column names"):
        load("sop", folder)


def test_windows_line_ends_and_blank_lines_are_read(tmp_path: Path) -> None:
    folder = write_sop(tmp_path)
    file = folder / "Ebay_test.txt"
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes().replace(b"\n", b"\r\n") + b"\r\n\r\n")
    assert len(load("sop", folder)) == 4


@pytest.mark.parametrize("content", [b"", b"not MATLAB", b"\x00" * 200])
def test_a_damaged_mat_file_is_named(tmp_path: Path, content: bytes) -> None:
    folder = write_flowers(tmp_path)
    (folder / "setid.mat").write_bytes(content)
    with pytest.raises(UserError, match=r"setid\.mat"):
        load("flowers102", folder)


def test_a_mat_file_cut_off_in_the_middle_is_named(tmp_path: Path) -> None:
    folder = write_cars_single_file(tmp_path)
    file = folder / "cars_annos.mat"
    file.write_bytes(file.read_bytes()[:-200])
    with pytest.raises(UserError, match=r"cars_annos\.mat"):
        load("cars196", folder)


def test_a_mat_file_without_its_labels_is_named(tmp_path: Path) -> None:
    folder = write_cars_devkit(tmp_path)
    unlabelled = structs(**BOX, fname=["00001.jpg", "00002.jpg"])  # what the devkit itself contains for the test set
    savemat(folder / "devkit/cars_test_annos_withlabels.mat", {"annotations": unlabelled})
    with pytest.raises(UserError, match=r"withlabels\.mat contains no 'annotations\.class'"):
        load("cars196", folder)


def test_a_mat_file_without_the_expected_variable_is_named(tmp_path: Path) -> None:
    folder = write_cars_devkit(tmp_path)
    savemat(folder / "devkit/cars_meta.mat", {"names": cells(CAR_CLASSES)})
    with pytest.raises(UserError, match=r"cars_meta\.mat contains no 'class_names'"):
        load("cars196", folder)


def test_mat_columns_of_different_lengths_are_refused(tmp_path: Path) -> None:
    folder = write_dogs(tmp_path)
    savemat(folder / "test_list.mat", {"file_list": cells(["a/b.jpg"]), "labels": [1, 2]})
    with pytest.raises(UserError, match=r"file_list and labels have different lengths, \[1, 2\]"):
        load("dogs120", folder)


def test_a_flower_without_label_is_refused(tmp_path: Path) -> None:
    folder = write_flowers(tmp_path)
    savemat(folder / "setid.mat", {"trnid": [1], "valid": [2], "tstid": [3, 6]})
    with pytest.raises(UserError, match=r"setid\.mat, entry 2 of tstid: image 6 has no label"):
        load("flowers102", folder)


@pytest.mark.parametrize(
    "path",
    ["/etc/passwd", "../secret.JPG", "bicycle_final/../../secret.JPG", r"..\secret.JPG", r"C:\secret.JPG"],
)
def test_a_path_that_leaves_the_dataset_folder_is_refused(tmp_path: Path, path: str) -> None:
    folder = write_sop(tmp_path)
    (tmp_path / "secret.JPG").touch()
    replace_in(folder / "Ebay_train.txt", "bicycle_final/111_1.JPG", path)
    with pytest.raises(UserError, match=r"Ebay_train\.txt, line 3: .* leaves the dataset's folder"):
        load("sop", folder)


def test_an_absolute_path_below_an_image_folder_is_refused(tmp_path: Path) -> None:
    folder = write_vehicleid(tmp_path)
    replace_in(folder / "train_test_split/train_list.txt", "0000001", "/0000001")
    with pytest.raises(UserError, match=r"'/0000001\.jpg' leaves the dataset's folder"):
        load("vehicleid", folder)


def test_a_path_in_a_mat_file_that_leaves_the_folder_is_refused(tmp_path: Path) -> None:
    folder = write_dogs(tmp_path)
    savemat(folder / "test_list.mat", {"file_list": cells(["../../secret.jpg"]), "labels": [1]})
    with pytest.raises(UserError, match=r"test_list\.mat, entry 1: path '\.\./\.\./secret\.jpg' leaves"):
        load("dogs120", folder)
