"""Tiny copies of the known data sets, with real images, for recipes that expect those layouts."""

from scipy.io import savemat

from support.layouts import names_of, structs, write
from support.pictures import jpeg, noise

CLASSES, IMAGES, SIDE = 8, 4, 40  # half of the classes are for training


def draw(root, paths):
    for seed, path in enumerate(paths):
        jpeg(root / path, noise(SIDE, SIDE, seed))
    return root


def draw_cub(root):
    paths = [f"{i:03d}.Bird/{i}_{k}.jpg" for i in range(1, CLASSES + 1) for k in range(IMAGES)]
    write(root, "images.txt", text="".join(f"{n} {path}\n" for n, path in enumerate(paths, 1)))
    labels = "".join(f"{n} {int(path[:3])}\n" for n, path in enumerate(paths, 1))
    write(root, "image_class_labels.txt", text=labels)
    write(root, "classes.txt", text="".join(f"{i} Bird {i}\n" for i in range(1, CLASSES + 1)))
    return draw(root, [f"images/{path}" for path in paths])


def draw_cars(root):
    paths = [f"car_ims/{i}_{k}.jpg" for i in range(1, CLASSES + 1) for k in range(IMAGES)]
    numbers = [int(path.removeprefix("car_ims/").split("_")[0]) for path in paths]
    rows = structs(relative_im_path=paths, **{"class": numbers})
    draw(root, paths)
    savemat(root / "cars_annos.mat", {"annotations": rows, "class_names": names_of(CLASSES)})
    return root


def draw_sop(root):
    paths = []
    half = CLASSES // 2
    for split, classes in (("train", range(1, half + 1)), ("test", range(half + 1, CLASSES + 1))):
        rows = [(i, f"chair_final/{i}_{k}.JPG") for i in classes for k in range(IMAGES)]
        lines = [f"{n} {i} 1 {path}\n" for n, (i, path) in enumerate(rows, 1)]
        write(root, f"Ebay_{split}.txt", text="image_id class_id super_class_id path\n" + "".join(lines))
        paths += [path for _, path in rows]
    return draw(root, paths)
