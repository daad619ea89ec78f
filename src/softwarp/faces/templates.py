"""Templates: sets of images that stand for one person each, as in IJB."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from softwarp.data.stores import FileStore, Store
from softwarp.faces.pairs import images_beside, numbered_lines, read_flag, read_lines, read_rows


@dataclass(frozen=True)
class Templates:
    """Sets of images that stand for a person each, as in IJB.

    `gallery` and `probes` number templates for 1:N; `pairs` are those for 1:1. Either may be empty.
    """

    images: Store
    template: NDArray[np.int64]  # each image's template: a place in `names`
    media: NDArray[np.int64]  # each image's photograph or video
    names: tuple[str, ...]
    people: tuple[str, ...]  # each template's person; empty if the list names none
    gallery: NDArray[np.int64]
    probes: NDArray[np.int64]


def read_templates(path: Path, images: Path | None = None, *, shorter_side: int | None = None) -> Templates:
    """Return the templates of a list file.

    Either a table with the columns `image`, `template` and, as needed, `media`, `person` and `role` (gallery
    or probe); or IJB's own lines `image template media`, without a header.
    """
    headed = "template" in read_lines(path)[0].lower().replace(",", " ").split()
    rows = read_rows(path, ("image", "template")) if headed else _ijb_rows(path)
    template_of = {
        name: place for place, name in enumerate(dict.fromkeys(row["template"] for _, row in rows))
    }
    told: dict[str, tuple[str, str]] = {}
    for number, row in rows:
        about = row.get("person", ""), row.get("role", "")
        if told.setdefault(row["template"], about) != about:
            raise ValueError(
                f"{path}, line {number}: template {row['template']} has two people or two roles; give it one"
            )
        if about[1] not in ("", "gallery", "probe"):
            raise ValueError(f"{path}, line {number}: role must be gallery or probe, not {about[1]!r}")
    media = [(row["template"], row.get("media") or str(number)) for number, row in rows]
    numbers = {pair: place for place, pair in enumerate(dict.fromkeys(media))}
    roles = np.array([told[name][1] for name in template_of])
    named = [told[name][0] for name in template_of]
    return Templates(
        FileStore(images_beside(path, images), [row["image"] for _, row in rows], shorter_side=shorter_side),
        np.array([template_of[row["template"]] for _, row in rows]),
        np.array([numbers[pair] for pair in media]),
        tuple(template_of),
        tuple(named) if all(named) else (),
        np.flatnonzero(roles == "gallery"),
        np.flatnonzero(roles == "probe"),
    )


def _ijb_rows(path: Path) -> list[tuple[int, dict[str, str]]]:
    rows = []
    for number, line in numbered_lines(path):
        words = line.split()
        if len(words) != 3:
            raise ValueError(
                f"{path}, line {number}: expected an image, a template and a medium; got {line!r}"
            )
        rows.append((number, dict(zip(("image", "template", "media"), words, strict=True))))
    if not rows:
        raise ValueError(f"{path} has no rows")
    return rows


def read_template_pairs(path: Path, templates: Templates) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return pairs of templates [P, 2] and whether they show one person; lines are `one other same`."""
    places = {name: place for place, name in enumerate(templates.names)}
    pairs, same = [], []
    for number, line in numbered_lines(path):
        words = line.split()
        if number == 1 and words[-1] == "same":
            continue  # the header
        if len(words) != 3 or words[0] not in places or words[1] not in places:
            raise ValueError(
                f"{path}, line {number}: expected two templates of the list and 1 or 0; got {line!r}"
            )
        pairs.append((places[words[0]], places[words[1]]))
        same.append(read_flag(words[2], path, number))
    if not pairs:
        raise ValueError(f"{path} holds no pairs")
    return np.array(pairs), np.array(same)
