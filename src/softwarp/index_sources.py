"""Which images are gone from the folders of an index, and when a disk is rather not mounted."""

from collections.abc import Sequence
from pathlib import Path

from softwarp.data.trees import name_of


def within(path: str, name: str) -> bool:
    """Return whether a path of an index is that name, or inside of it; `.` is the root."""
    return path == name or (not path.startswith("/") if name == "." else path.startswith(f"{name}/"))


def refuse_losses(
    names: Sequence[str],
    gone: set[str],
    *,
    root: Path,
    sources: Sequence[Path],
    index: Path,
    remove_missing: bool,
) -> None:
    """Stop where a folder shows none of its images, or fewer than half of them unless that is expected.

    Args:
        names: of all images, as the index has them.
        gone: those without a file.
        sources: the folders that were indexed.
        remove_missing: images may be gone, as long as each folder shows one.
    """
    loose = set(names)
    for source in sources:
        inside = {name for name in names if within(name, name_of(source, root))}
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
