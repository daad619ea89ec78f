"""Downloads data sets from their official addresses: resumed, verified, and unpacked whole or not at all."""

import gzip
import hashlib
import os
import shutil
import tarfile
import tempfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from softwarp.data.tables import read_table
from softwarp.names import did_you_mean

Report = Callable[[str, int, int | None], None]  # current step, bytes done, total bytes if known
CHUNK = 1 << 20
SWELLING = 3  # limit of content size over archive size; images hardly compress
BROKEN = (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, EOFError, RuntimeError)


@dataclass(frozen=True)
class Archive:
    """An archive, and the folder in it that is the data set."""

    address: str
    file: str
    folder: str
    md5: str
    size: int  # bytes, about


ARCHIVES = {
    "cub": Archive(
        "https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz?download=1",
        "CUB_200_2011.tgz",
        "CUB_200_2011",
        "97eceeb196236b17998738112f37df78",
        1_150_000_000,
    ),
    # The authors publish no checksum, and their ftp://cs.stanford.edu cannot resume; this is the same server
    # over HTTP, and the checksum that other projects agree on.
    "sop": Archive(
        "http://ftp.cs.stanford.edu/cs/cvgl/Stanford_Online_Products.zip",
        "Stanford_Online_Products.zip",
        "Stanford_Online_Products",
        "7f73d41a2f44250d4779881525aea32e",
        3_080_000_000,
    ),
}

CARS = """Cars196 no longer has an official address; get a copy, for example "Stanford Cars" on Kaggle.
Put one of these into a folder, and use that folder as the data's root: either
  cars_annos.mat and car_ims/000001.jpg ...
or
  cars_train/00001.jpg ... and cars_test/00001.jpg ...
  devkit/cars_meta.mat, devkit/cars_train_annos.mat and devkit/cars_test_annos_withlabels.mat
The devkit's own cars_test_annos.mat has no classes: use cars_test_annos_withlabels.mat.
Then `softwarp data check FOLDER --name cars` checks that everything is there."""


def download(
    name: str,
    to: Path,
    *,
    progress: Report | None = None,
    address: str | None = None,
    md5: str | None = None,
) -> Path:
    """Return the data set's folder in `to`, downloaded and unpacked unless it is already there.

    The same call resumes a download that was stopped at any point. An archive that is already in `to` is
    used instead of downloading it. The archive is removed once it is unpacked.

    Args:
        address: of a mirror with the same archive.
        md5: the archive's, instead of the known one.
    """
    known = _archive(name)
    if is_there(name, to):
        return to / known.folder
    report = progress or (lambda step, done, total: None)
    to.mkdir(parents=True, exist_ok=True)
    archive = to / known.file
    if archive.exists():
        _verify(archive, md5 or known.md5, report)
    else:
        part = archive.with_name(archive.name + ".part")
        if part.is_symlink():
            raise OSError(
                f"{part} is a link, and downloading would write through it; remove it and run again"
            )
        _fetch(address or known.address, part, report)
        try:
            _verify(part, md5 or known.md5, report)
        except ValueError:
            part.unlink()  # resuming it could never succeed
            raise
        part.replace(archive)
    _unpack(name, archive, to, report)
    archive.unlink()
    return to / known.folder


def is_there(name: str, to: Path) -> bool:
    """Return whether `to` already holds the data set; an incomplete folder in its place is an error."""
    folder = to / _archive(name).folder
    if not folder.exists():
        return False
    try:
        read_table(name, folder, strict=True)
    except (ValueError, OSError) as error:
        raise ValueError(f"{folder} exists but is incomplete: {error}; move it away and run again") from error
    return True


def _archive(name: str) -> Archive:
    if name == "cars":
        raise ValueError(CARS)
    if name not in ARCHIVES:
        answer = did_you_mean(name, ARCHIVES, f"there are {', '.join(ARCHIVES)}")
        raise ValueError(f"no download is called {name!r}; {answer}")
    return ARCHIVES[name]


def _fetch(address: str, part: Path, report: Report) -> None:
    """Download the file at `address` into `part`, resuming after the bytes that are there."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(address, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            have, total = _extent(response, have)
            with part.open("ab") as file:
                file.truncate(have)
                while chunk := response.read(CHUNK):
                    file.write(chunk)
                    have += len(chunk)
                    report("downloading", have, total)
                file.flush()
                os.fsync(file.fileno())
    except urllib.error.HTTPError as error:
        if error.code == 416 and have:
            if error.headers.get("Content-Range", "") in (f"bytes */{have}", ""):
                return  # there is nothing more: it is complete, as the checksum will confirm
            part.unlink()
        raise OSError(f"{address}: {error}; run again, or name a mirror with --address") from error
    except (OSError, HTTPException) as error:
        raise OSError(f"{address}: {error}; run again to resume, or name a mirror with --address") from error
    if total is not None and have < total:
        raise OSError(f"{address}: connection lost after {have} of {total} bytes; run again to resume")


def _extent(response: Any, have: int) -> tuple[int, int | None]:
    """The position at which the response starts and the length of the whole file, if the server says so."""
    length = response.headers.get("Content-Length")
    if response.status == 206 and response.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
        return have, have + int(length) if length else None
    return 0, int(length) if length else None  # a server without ranges sends the whole file


def _verify(file: Path, expected: str, report: Report) -> None:
    digest, done, total = hashlib.md5(usedforsecurity=False), 0, file.stat().st_size
    with file.open("rb") as content:
        while chunk := content.read(CHUNK):
            digest.update(chunk)
            done += len(chunk)
            report("verifying", done, total)
    if digest.hexdigest() != expected:
        raise ValueError(
            f"{file} has md5 {digest.hexdigest()} instead of {expected}: it is damaged or a different "
            "file; remove it if it is still there and run again"
        )


def _unpack(name: str, archive: Path, to: Path, report: Report) -> None:
    """Unpack next to the final place and rename when complete, so that the folder is whole or absent."""
    folder = ARCHIVES[name].folder
    for left in to.glob(f".{folder}.unpacking-*"):  # what a killed run left
        shutil.rmtree(left)
    temporary = Path(tempfile.mkdtemp(dir=to, prefix=f".{folder}.unpacking-"))
    try:
        try:
            unpack = _unzip if zipfile.is_zipfile(archive) else _untar
            unpack(archive, temporary, SWELLING * ARCHIVES[name].size, report)
            read_table(name, temporary / folder, strict=True)
        except (*BROKEN, FileNotFoundError, ValueError) as error:
            raise ValueError(
                f"{archive} is not a complete {name}: {error}; remove it and run again"
            ) from error
        (temporary / folder).rename(to / folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _untar(archive: Path, folder: Path, most: int, report: Report) -> None:
    if not hasattr(tarfile, "data_filter"):
        raise OSError("unpacking safely needs Python 3.11.4 or newer")
    size, total = 0, archive.stat().st_size
    with archive.open("rb") as raw, tarfile.open(fileobj=raw) as tar:
        for member in tar:
            if not (member.isfile() or member.isdir()):
                raise tarfile.TarError(f"{member.name!r} is a link or a device")
            size += member.size
            _check_size(size, most)
            tar.extract(member, folder, filter="data")  # refuses what leads out of the folder
            report("unpacking", raw.tell(), total)


def _unzip(archive: Path, folder: Path, most: int, report: Report) -> None:
    done, total = 0, archive.stat().st_size
    with zipfile.ZipFile(archive) as content:
        _check_size(sum(member.file_size for member in content.infolist()), most)
        for member in content.infolist():
            _check_member(member)
            content.extract(member, folder)
            done += member.compress_size
            report("unpacking", done, total)


def _check_size(size: int, most: int) -> None:
    if size > most:
        raise ValueError(f"it unpacks to {size:,} bytes or more, but at most {most:,} are expected")


def _check_member(member: zipfile.ZipInfo) -> None:
    path, kind = PureWindowsPath(member.filename), member.external_attr >> 28  # the Unix mode's file type
    if path.anchor or ".." in path.parts or PurePosixPath(member.filename).is_absolute():
        raise zipfile.BadZipFile(f"{member.filename!r} leads out of the folder")
    if kind not in (0, 0o4, 0o10):
        raise zipfile.BadZipFile(f"{member.filename!r} is a link or a device")
