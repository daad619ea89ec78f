"""From ids, vectors and filters to what the API answers."""

import csv
import io
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import numpy as np
from fastapi import Depends, HTTPException, Path, Query, Request
from numpy.typing import NDArray
from PIL import Image

from softwarp.data.decode import image_size, open_image, read_image
from softwarp.files import printable
from softwarp.index.images import IndexedImage
from softwarp.index.index import Index
from softwarp.index.queries import farthest
from softwarp.serve.answers import LARGEST_ID, About, ClassCount, Found, ShownImage, ShownResult, Votes
from softwarp.serve.limits import Limits

LONGEST = 300  # letters of a filter
LARGE = 1280  # pixels per side of an image that is shown alone
KNOWN = {"class", "path", "k", "count", "token", "within"}  # parameters beside which a filter may stand


def filters(
    request: Request,
    name: Annotated[
        str, Query(alias="class", max_length=LONGEST, description="Only images of this class.")
    ] = "",
    path: Annotated[
        str, Query(max_length=LONGEST, description="Only images whose path matches this glob.")
    ] = "",
) -> dict[str, str]:
    """Return the conditions that a request names; a misspelt one would let everything pass."""
    if unknown := sorted(set(request.query_params) - KNOWN):
        raise HTTPException(
            422, f"no parameter is called {printable(unknown[0])!r}; filters are class and path"
        )
    return {kind: value for kind, value in (("class", name), ("path", path)) if value}


Id = Annotated[int, Path(ge=0, le=LARGEST_ID, description="The id of an image.")]
Where = Annotated[dict[str, str], Depends(filters)]


def about_index(index: Index, limits: Limits) -> About:
    """Return what is served; of folders only their own name."""
    classes = index.store.classes()
    return About(
        name=printable(index.folder.resolve().name),
        images=len(index),
        classes=[ClassCount(name=printable(name), count=classes[name]) for name in sorted(classes)],
        distance=index.distance,
        dimensions=index.dimensions,
        model=model_name(index),
        uploads=bool(index.model_name),
        upload_bytes=limits.upload_bytes,
        pixels=limits.pixels,
        results=limits.results,
    )


def model_name(index: Index) -> str:
    """Return the name of the run or pretrained model that the vectors come from, without its folders."""
    return printable(index.model_name.rstrip("/").rpartition("/")[2])


def conditions(index: Index, where: dict[str, str]) -> list[str]:
    """Return a filter as `Index.search` takes it; classes are named as they are shown."""
    found = []
    for kind, value in where.items():
        if kind == "class":
            named = {printable(name): name for name in index.store.classes()}
            if value not in named:
                raise HTTPException(404, f"no class is called {printable(value)!r}")
            value = named[value]
        found.append(f"{kind}={value}")
    return found


def matching(index: Index, where: dict[str, str]) -> list[int]:
    """Return the ids of all images that match, ascending."""
    pairs = [(kind, value) for kind, _, value in (each.partition("=") for each in conditions(index, where))]
    return index.store.select(pairs)


def find_nearest(
    index: Index,
    vector: NDArray[Any],
    k: int,
    where: dict[str, str],
    *,
    digest: str,
    within: float | None = None,
    but: int = 0,
) -> Found:
    """Return the k nearest images with their votes.

    Args:
        digest: of the query's file; images of the same content are told, and do not vote.
        within: the largest distance; images that are farther away are left out.
        but: the id of an image that is left out.
    """
    try:
        ids, distances = index.nearest(vector, k + 1 if but else k, where=conditions(index, where))
    except UnicodeError:
        raise HTTPException(400, "the filter is not Unicode") from None
    pairs = [pair for pair in zip(ids[0].tolist(), distances[0].tolist(), strict=True) if pair[0] != but]
    near = [pair for pair in pairs[:k] if pair[1] <= farthest(within)]
    results = shown_results(index.store.find(number for number, _ in near), near, digest)
    nearest = pairs[0][1] if pairs else None
    return Found(distance=index.distance, nearest=nearest, results=results, votes=votes(results))


def shown_results(
    items: Mapping[int, IndexedImage], pairs: Iterable[tuple[int, float]], digest: str = ""
) -> list[ShownResult]:
    """Return images with their distances; those removed meanwhile, which `items` lacks, are left out."""
    there = [(items[number], distance) for number, distance in pairs if number in items]
    return [
        # Vectors from elsewhere have no digest.
        ShownResult(**_fields(item), distance=distance, same_file=bool(digest) and item.digest == digest)
        for item, distance in there
    ]


def votes(results: Sequence[ShownResult]) -> list[Votes]:
    """Return the classes of neighbours, the most frequent first; of equally frequent ones the nearer."""
    voters = [each for each in results if each.label is not None and not each.same_file]
    counts = Counter(each.label for each in voters)
    nearest = {each.label: each.distance for each in reversed(voters)}
    ordered = sorted(counts, key=lambda label: (-counts[label], nearest[label]))
    return [Votes(label=label, count=counts[label], nearest=nearest[label]) for label in ordered]


def image_of(index: Index, number: int) -> IndexedImage:
    """Return the item with that id, or answer that there is none."""
    return images_of(index, [number])[0]


def images_of(index: Index, ids: Sequence[int]) -> list[IndexedImage]:
    """Return the items with these ids, or answer that there is none for one of them."""
    found = index.store.find(ids)
    unknown = [number for number in ids if number not in found]
    if unknown:
        raise HTTPException(404, f"no image has the id {unknown[0]}")
    return [found[number] for number in ids]


def picture(item: IndexedImage) -> ShownImage:
    """Return an item as it is shown."""
    return ShownImage(**_fields(item))


def vector_of(index: Index, number: int) -> NDArray[np.float32]:
    """Return the vector of an image of the index."""
    (row,) = index.store.rows_of([image_of(index, number).id])
    return np.asarray(index.store.vectors[row])


def large_jpeg(index: Index, number: int, limits: Limits) -> bytes:
    """Return an image of the index from its file, as a JPEG of at most 1280 pixels a side."""
    path = index.file(image_of(index, number))
    try:
        with open_image(path) as file:
            if math.prod(image_size(file)) > limits.pixels:
                raise HTTPException(413, f"the image has more than {limits.pixels:,} pixels")
        image = read_image(path, shorter_side=LARGE)
    except (OSError, ValueError, Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise HTTPException(404, "the image's file is gone or broken") from None
    image.thumbnail((LARGE, LARGE))
    content = io.BytesIO()
    Image.fromarray(np.asarray(image)).save(content, "JPEG", quality=88)  # no EXIF: no places, no names
    return content.getvalue()


def csv_of(index: Index, ids: Iterable[int]) -> bytes:
    """Return id, path and class of images as CSV; names that are not UTF-8 keep their bytes."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["id", "path", "class"])
    for item in images_of(index, list(dict.fromkeys(ids))):
        writer.writerow([item.id, item.path, item.label or ""])
    return text.getvalue().encode("utf-8", "surrogateescape")


def _fields(item: IndexedImage) -> dict[str, Any]:
    label = None if item.label is None else printable(item.label)
    return {"id": item.id, "path": printable(item.path), "label": label}
