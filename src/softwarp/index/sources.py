"""The folders and CSV files of an index: what they hold, what is gone, and when a disk is not mounted."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from softwarp.data.classes import class_of
from softwarp.data.trees import FoundImages, find_images, name_of


def within(path: str, name: str) -> bool:
    """Return whether a path of an index is that name, or inside of it; `.` is the root."""
    return path == name or (not path.startswith("/") if name == "." else path.startswith(f"{name}/"))


def images_in(
    places: Sequence[Path], root: Path, *, listed: bool = False
) -> tuple[FoundImages, dict[str, Path], dict[str, str]]:
    """Return the images of places with their files and labels `by_name`; an error if there are none."""
    found = find_images(places, listed=listed)
    if not found.paths:
        raise ValueError(f"there are no images in {', '.join(map(str, places))}")
    return found, *by_name(found, root)


def by_name(found: FoundImages, root: Path) -> tuple[dict[str, Path], dict[str, str]]:
    """Return the files of images, and the labels that lists give, by the names that the index has."""
    files = {name_of(path, root): path for path in found.paths}
    return files, {name_of(path, root): label for path, label in found.labels().items()}


def label_of(name: str, listed: Mapping[str, str], *, depth: int | None, splits: bool) -> str | None:
    """Return the class of an image: the one that a list gives, or else its folder."""
    return listed.get(name) or class_of(name, depth=depth, splits=splits)


def held_by(
    sources: Sequence[Path], names: Sequence[str], lists: Mapping[str, set[str]], root: Path
) -> dict[Path, set[str]]:
    """Return which images of the index each folder holds, or each CSV file listed when it was last read."""
    held, known = {}, set(names)
    for source in sources:
        inside, name = lists.get(str(source)), name_of(source, root)
        if inside:
            held[source] = known & inside
        elif name in known:  # an image: thousands of them may be given
            held[source] = {name}
        else:
            held[source] = {each for each in names if within(each, name)}
    return held


def refuse_losses(
    names: Sequence[str], gone: set[str], *, held: Mapping[Path, set[str]], index: Path, remove_missing: bool
) -> None:
    """Stop where a source shows none of its images, or fewer than half of them unless that is expected.

    Args:
        names: of all images, as the index has them.
        gone: those without a file, or that a CSV file no longer lists.
        held: the images of each folder and CSV file that was indexed.
        remove_missing: images may be gone, as long as each source shows one.
    """
    loose = set(names)
    for source, inside in held.items():
        loose -= inside
        if inside and inside <= gone:
            raise ValueError(
                f"{source} shows none of its {len(inside):,} images; is the disk mounted? "
                f"If they are really gone: softwarp index remove {index} {source}"
            )
        if not remove_missing:
            _refuse_most(inside, gone, f"images of {source}", index)
    if not remove_missing:
        _refuse_most(loose, gone, "images that were added by name", index)


def _refuse_most(inside: set[str], gone: set[str], what: str, index: Path) -> None:
    lost = inside & gone
    if len(lost) * 2 > len(inside):
        raise ValueError(
            f"{len(lost):,} of {len(inside):,} {what} are gone, like {min(lost)}; is the disk mounted? "
            f"If they are really gone: softwarp index refresh {index} --remove-missing"
        )
