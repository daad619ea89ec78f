"""Small folders in the layouts of the known data sets."""

import numpy as np
from scipy.io import savemat


def write(root, *paths, text=""):
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)


def make_cub(root, classes=4):
    """A CUB folder of two images per class, listed with the last class first."""
    names = [f"{i:03d}.Bird {i}" for i in range(1, classes + 1)]  # with a space, as in one's own copy
    paths = [f"{name}/{name}_{k}.jpg" for name in reversed(names) for k in (0, 1)]
    write(root, *(f"images/{path}" for path in paths))
    write(root, "images.txt", text="".join(f"{i} {path}\n" for i, path in enumerate(paths, 1)))
    labels = "".join(f"{i} {int(path[:3])}\n" for i, path in enumerate(paths, 1))
    write(root, "image_class_labels.txt", text=labels)
    lines = [f"{i} {name}\n" for i, name in enumerate(names, 1)]
    write(root, "classes.txt", text="".join([*lines, "\n"]))  # an empty line is none
    return paths


def make_sop(root):
    head = "image_id class_id super_class_id path\n"
    train = "1 1 1 bicycle_final/11_0.JPG\n2 1 1 bicycle_final/11_1.JPG\n3 2 1 bicycle_final/12_0.JPG\n"
    test = "4 10 2 chair_final/21_0.JPG\n5 9 2 chair_final/20_0.JPG\n"
    write(root, "Ebay_train.txt", text=head + train)
    write(root, "Ebay_test.txt", text=head + test)
    write(root, *(line.split()[3] for line in (train + test).splitlines()))


def structs(**columns):
    """A MATLAB struct array as scipy writes it."""
    rows = list(zip(*columns.values(), strict=True))
    return np.array([rows], dtype=[(name, object) for name in columns])


def names_of(classes):
    return np.array([f"Car {i}" for i in range(1, classes + 1)], dtype=object)


def make_cars(root, *, kaggle=False):
    """Cars in folders of the original's own split, by image, which the readers must not follow."""
    files = ["00001.jpg", "00002.jpg"]
    for part, classes in (("train", [1, 3]), ("test", [2, 4])):
        folder = f"cars_{part}/cars_{part}" if kaggle else f"cars_{part}"
        write(root, *(f"{folder}/{file}" for file in files))
        name = "cars_train_annos.mat" if part == "train" else "cars_test_annos_withlabels.mat"
        place = root / name if part == "test" else root / "devkit" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        savemat(place, {"annotations": structs(fname=files, **{"class": classes})})
    savemat(root / "devkit" / "cars_meta.mat", {"class_names": names_of(4)})
