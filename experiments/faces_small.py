"""Four losses on a few hundred people with two cores, verified on people that none of them saw.

    python experiments/faces_small.py --cfp CFP --lfw LFW      -> results/faces_small.json

CFP holds `images/ID/*.jpg`, `names.txt` and `pairs_ff.tsv`, `pairs_fp.tsv`; LFW `images/NAME/*.jpg` and
`pairs.txt`; all aligned to 112 x 112. For LFW a model trains on the people of CFP who are not in LFW, by
name. For CFP itself two models train on one half of its ten folds of people each, and verify the pairs of
the other half. Network, batches, epochs and rates are those of `faces_small.yaml` for every loss, with the
loss's own defaults: nothing was searched, least of all on LFW or on the folds that are judged. Raw pixels
are the line to beat. Accuracies are computed a second time, by another way. It is small: figures say that
the pieces work together, not which loss is best for faces. A stopped study resumes.
"""

import io
import json
import pickle
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from PIL import Image, ImageOps

from softwarp.events import OnEvent, shown
from softwarp.faces.pairs import PairSet, read_pairs
from softwarp.faces.verify import successive_folds, verify
from softwarp.files import atomic_write, write_json, write_text
from softwarp.inference import EmbeddingModel, load
from softwarp.memory import freed_memory_kept
from softwarp.metrics import verification_metrics
from softwarp.recipe.files import find_recipe, read_settings
from softwarp.recipe.overrides import override
from softwarp.recipe.schema import Recipe, parse_recipe
from softwarp.runs.provenance import environment
from softwarp.training.train import train_recipe

LOSSES: dict[str, dict[str, Any]] = {
    "warped_softmax": {"alpha": "auto", "scale": "auto"},
    "euclidean_softmax": {"scale": "auto"},
    "cosface": {},
    "arcface": {},
}
HALVES = (range(1, 6), range(6, 11))  # folds of CFP
ALIKE = 0.9  # of two names: the same person, spelled in another way
KEPT = ("accuracy", "accuracy_std", "tar@far=0.01", "fold_tar@far=0.01", "auc")
Floats = NDArray[np.float64]


def people_in_both(cfp: Iterable[str], lfw: Iterable[str]) -> dict[str, str]:
    """Return the people of CFP who are in LFW, also if a few letters differ, and their names there.

    >>> people_in_both(["Albert Pujol", "Adam Levine"], ["Albert_Pujols", "Ann_Veneman"])
    {'Albert Pujol': 'Albert_Pujols'}
    """
    known = {_letters(name): name for name in lfw}
    near = {name: get_close_matches(_letters(name), known, n=1, cutoff=ALIKE) for name in cfp}
    return {name: known[found[0]] for name, found in near.items() if found}


def _letters(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


def recipe_for(loss: str, table: Path, changes: Iterable[str]) -> Recipe:
    """Return the recipe of a loss: all but the loss is the same for all of them."""
    settings = override(read_settings(find_recipe("faces_small")), list(changes))
    settings["data"] |= {"name": "csv", "root": str(table)}
    settings["loss"] = {"name": loss, "settings": LOSSES[loss]}
    settings["evaluation"] |= {"test_classes": "none"}
    return parse_recipe(settings)


def write_people(path: Path, cfp: Path, people: Iterable[int]) -> Path:
    """Write the list of all images of these people, numbered from 1."""
    rows = [
        f"{image.resolve()},{person:03d}"
        for person in people
        for image in sorted((cfp / "images" / f"{person:03d}").glob("*.jpg"))
    ]
    if not rows:
        raise ValueError(f"{cfp / 'images'} holds no images of these people")
    write_text(path, "\n".join(["path,label", *rows]) + "\n")
    return path


def people_of(pairs: PairSet, folds: Iterable[int]) -> set[int]:
    """Return the people in the pairs of these folds of CFP."""
    assert pairs.folds is not None
    kept = np.isin(pairs.folds, list(folds))
    places = np.union1d(pairs.first[kept], pairs.second[kept])
    return {int(pairs.images.name(place).split("/")[0]) for place in places.tolist()}


def only(pairs: PairSet, folds: Iterable[int]) -> PairSet:
    """Return the pairs of these folds."""
    assert pairs.folds is not None
    kept = np.isin(pairs.folds, list(folds))
    columns = (pairs.first[kept], pairs.second[kept], pairs.same[kept], pairs.folds[kept])
    return PairSet(pairs.name, pairs.images, *columns)


def accuracy_again(distances: Floats, same: NDArray[np.bool_], folds: NDArray[np.int64]) -> float:
    """Return the mean accuracy over folds; every threshold between two distances is tried, one by one."""
    found = []
    for fold in np.unique(folds):
        inside = folds == fold
        levels = np.unique(distances[~inside])
        tried = [levels[0], *((levels[1:] + levels[:-1]) / 2), np.nextafter(levels[-1], np.inf)]
        scores = [np.mean((distances[~inside] < threshold) == same[~inside]) for threshold in tried]
        found.append(np.mean((distances[inside] < tried[int(np.argmax(scores))]) == same[inside]))
    return float(np.mean(found))


def pixel_distances(pairs: PairSet) -> dict[str, Floats]:
    """Return the distances of grey pixels, which need no training, in two ways."""
    rows = []
    for place in range(len(pairs.images)):
        image = pairs.images.read(place)
        assert isinstance(image, Image.Image)
        rows.append(np.asarray(image.convert("L"), np.float32))
    plain = np.stack(rows)
    mirrored = (plain + plain[:, :, ::-1]).reshape(len(plain), -1)
    plain = plain.reshape(len(plain), -1)
    mirrored /= np.linalg.norm(mirrored, axis=1, keepdims=True)
    return {
        "raw pixels": np.array([np.linalg.norm(plain[a] - plain[b]) for a, b in _both(pairs)]),
        "raw pixels, mirrored, cosine": np.array([1.0 - mirrored[a] @ mirrored[b] for a, b in _both(pairs)]),
    }


def _both(pairs: PairSet) -> list[tuple[int, int]]:
    return list(zip(pairs.first.tolist(), pairs.second.tolist(), strict=True))


def distances_again(model: EmbeddingModel, pairs: PairSet) -> Floats:
    """Return the distances of pairs from images that PIL mirrors, with the mean and the distance by NumPy."""
    images = [pairs.images.read(place) for place in range(len(pairs.images))]
    plain = model.embed(images).double().numpy()
    mirrored = model.embed([ImageOps.mirror(each) for each in images]).double().numpy()  # type: ignore[arg-type]
    points = (plain + mirrored) / 2
    left, right = points[pairs.first], points[pairs.second]
    if model.distance == "euclidean":
        return np.asarray(np.sqrt(((left - right) ** 2).sum(axis=1)))
    dots = (left * right).sum(axis=1)
    return np.asarray(1 - dots / np.linalg.norm(left, axis=1) / np.linalg.norm(right, axis=1))


def judged(model: EmbeddingModel, pairs: PairSet, workers: int) -> dict[str, Any]:
    """Return the figures of a model on pairs, and the accuracy computed a second time."""
    found = verify(model, pairs, workers=workers)
    assert found.pairs.folds is not None
    again = accuracy_again(found.distances, found.pairs.same, found.pairs.folds)
    return {
        **{name: found.metrics[name] for name in KEPT},
        "accuracy_again": again,
        "pairs": len(found.distances),
    }


def both_halves(halves: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures over both halves of the folds: means, and the deviation over all folds."""
    mean = {name: float(np.mean([half[name] for half in halves])) for name in halves[0]}
    squares = np.mean([half["accuracy_std"] ** 2 + half["accuracy"] ** 2 for half in halves])
    deviation = float(max(0.0, squares - mean["accuracy"] ** 2) ** 0.5)
    return mean | {"accuracy_std": deviation, "pairs": sum(half["pairs"] for half in halves)}


def write_as_bin(path: Path, pairs: PairSet, root: Path) -> Path:
    """Write pairs as insightface keeps them, each image as its file."""
    places = np.stack([pairs.first, pairs.second], axis=1).ravel().tolist()
    images = [(root / pairs.images.name(place)).read_bytes() for place in places]
    content = io.BytesIO()
    pickle.dump((images, pairs.same.tolist()), content, protocol=2)
    with atomic_write(path) as file:
        file.write(content.getvalue())
    return path


def pixel_rows(sets: dict[str, PairSet]) -> list[dict[str, Any]]:
    """Return the figures of raw pixels, a row for each way to compare them."""
    rows: dict[str, dict[str, Any]] = {}
    for name, pairs in sets.items():
        folds = successive_folds(len(pairs.same)) if pairs.folds is None else pairs.folds
        for way, distances in pixel_distances(pairs).items():
            found = verification_metrics(distances, pairs.same, folds=folds)
            rows.setdefault(way, {"row": way})[name] = {key: found[key] for key in KEPT}
    return list(rows.values())


def training_tables(cfp: Path, folder: Path, sets: dict[str, PairSet], others: list[int]) -> dict[str, Path]:
    """Return the lists of images that train: other people for LFW, for each half of the folds the rest."""
    tables = {"lfw": write_people(folder / "not_in_lfw.csv", cfp, others)}
    everyone = people_of(sets["cfp_ff"], range(1, 11)) | people_of(sets["cfp_fp"], range(1, 11))
    for number, folds in enumerate(HALVES):
        inside = people_of(sets["cfp_ff"], folds) | people_of(sets["cfp_fp"], folds)
        tables[f"half_{number}"] = write_people(folder / f"half_{number}.csv", cfp, sorted(everyone - inside))
    return tables


def loss_row(
    loss: str, models: dict[str, EmbeddingModel], sets: dict[str, PairSet], workers: int
) -> dict[str, Any]:
    """Return the figures of a loss: one model on LFW, one on each half of CFP's folds."""
    row: dict[str, Any] = {"row": loss, "distance": models["lfw"].distance}
    row["lfw"] = judged(models["lfw"], sets["lfw"], workers)
    for name in ("cfp_ff", "cfp_fp"):
        halves = [only(sets[name], folds) for folds in HALVES]
        row[name] = both_halves([judged(models[f"half_{n}"], half, workers) for n, half in enumerate(halves)])
    return row


def check_lfw(model: EmbeddingModel, lfw: Path, folder: Path, workers: int) -> dict[str, Any]:
    """Return LFW's figures by another way from image to accuracy, and those of the same pairs as a `.bin`."""
    pairs = read_pairs(lfw / "pairs.txt")
    distances = distances_again(model, pairs)
    packed = read_pairs(write_as_bin(folder / "lfw.bin", pairs, lfw / "images"))
    return {
        "accuracy by another way": accuracy_again(distances, pairs.same, successive_folds(len(distances))),
        "as .bin": judged(model, packed, workers),
    }


def study(
    cfp: Path, lfw: Path, folder: Path, changes: list[str], workers: int, on_event: OnEvent | None
) -> dict[str, Any]:
    """Return everything that results/faces_small.json holds but how it was made."""
    sets = {"lfw": read_pairs(lfw / "pairs.txt")} | {
        name: read_pairs(cfp / f"pairs_{name[-2:]}.tsv", cfp / "images") for name in ("cfp_ff", "cfp_fp")
    }
    names = (cfp / "names.txt").read_text().split("\n")
    everyone = {number: name for number, name in enumerate(names, start=1) if name}
    both = people_in_both(everyone.values(), (path.name for path in (lfw / "images").iterdir()))
    others = [number for number, name in everyone.items() if name not in both]
    tables = training_tables(cfp, folder, sets, others)
    rows, checks = pixel_rows(sets), dict[str, Any]()
    for loss in LOSSES:
        runs = {
            part: train_recipe(
                recipe_for(loss, table, changes), folder / loss / part, resume=True, on_event=on_event
            )
            for part, table in tables.items()
        }
        models = {part: load(run.folder) for part, run in runs.items()}
        seconds = {part: run.result().seconds for part, run in runs.items()}
        rows.append(loss_row(loss, models, sets, workers) | {"seconds": seconds})
        checks = checks or {"of": loss, **check_lfw(models["lfw"], lfw, folder, workers)}
    return {
        "people": {"cfp": len(everyone), "left_out": both, "trained_for_lfw": len(others)},
        "images": {part: len(table.read_text().splitlines()) - 1 for part, table in tables.items()},
        "rows": rows,
        "checks": checks,
    }


def main(
    cfp: Annotated[Path, typer.Option(help="CFP: images, names.txt, pairs_ff.tsv, pairs_fp.tsv.")],
    lfw: Annotated[Path, typer.Option(help="LFW: images, pairs.txt.")],
    changes: Annotated[list[str] | None, typer.Argument(help="Changes to faces_small.yaml.")] = None,
    folder: Path = Path("runs/faces_small"),
    result: Path = Path("results/faces_small.json"),
    workers: Annotated[int, typer.Option(help="Processes that decode for verification.")] = 0,
) -> None:
    """Train, verify, and write the result."""
    with freed_memory_kept(), shown() as on_event:
        content = study(cfp, lfw, folder, changes or [], workers, on_event)
    command = " ".join(["python experiments/faces_small.py --cfp CFP --lfw LFW", *(changes or [])])
    recipe = json.loads(parse_recipe(read_settings(find_recipe("faces_small"))).model_dump_json())
    about = {"command": command, "seed": recipe["seed"], "recipe": recipe, "losses": LOSSES}
    write_json(result, about | content | {"environment": environment()})


if __name__ == "__main__":
    typer.run(main)
