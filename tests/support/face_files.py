"""Face records and verification files as others write them, from the formats' definitions; tiny faces."""

import io
import pickle
import struct

import numpy as np
from hypothesis import strategies as st
from PIL import Image

MAGIC = struct.pack("<I", 0xCED7230A)


def face(person, number, size=112, noise=12):
    """A JPEG of a person: blocks of colour that are the person's own, and noise."""
    colours = np.random.default_rng(person).integers(30, 225, (7, 7, 3))
    pixels = np.kron(colours, np.ones((size // 7, size // 7, 1)))
    pixels = pixels + np.random.default_rng((person, number)).normal(0, noise, pixels.shape)
    buffer = io.BytesIO()
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def face_folder(root, people=8, images=4, **settings):
    """root/person_N/person_N_0001.jpg, as in LFW."""
    for person in range(people):
        folder = root / f"person_{person:02d}"
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(1, images + 1):
            (folder / f"{folder.name}_{number:04d}.jpg").write_bytes(face(person, number, **settings))
    return root


def part(kind, content):
    padding = -len(content) % 4
    return MAGIC + struct.pack("<I", kind << 29 | len(content)) + content + b"\0" * padding


def as_record(content):
    """Cut where the magic number stands at a multiple of four bytes, as dmlc's writer does."""
    pieces, start = [], 0
    for place in range(0, len(content) - 3, 4):
        if content[place : place + 4] == MAGIC:
            pieces.append(content[start:place])
            start = place + 4
    pieces.append(content[start:])
    if len(pieces) == 1:
        return part(0, pieces[0])
    kinds = [1, *[2] * (len(pieces) - 2), 3]
    return b"".join(part(kind, piece) for kind, piece in zip(kinds, pieces, strict=True))


def packed(labels, image, key=0):
    """The content of a record: one label in the header, or several after it."""
    if isinstance(labels, list):
        return (
            struct.pack("<IfQQ", len(labels), 0.0, key, 0) + struct.pack(f"<{len(labels)}f", *labels) + image
        )
    return struct.pack("<IfQQ", 0, float(labels), key, 0) + image


def write_records(folder, records, name="train"):
    """records: content by key; returns the path of the .rec."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{name}.rec").open("wb") as file, (folder / f"{name}.idx").open("w") as index:
        for key, content in records.items():
            index.write(f"{key}\t{file.tell()}\n")
            file.write(as_record(content))
    return folder / f"{name}.rec"


def write_faces(folder, people=8, images=4, **settings):
    """As insightface packs faces: record 0 says where images end, the last ones where each person's are."""
    count = people * images
    records = {0: packed([count + 1.0, count + 1.0 + people], b"")}
    for person in range(people):
        for number in range(images):
            key = 1 + person * images + number
            records[key] = packed(person, face(person, number + 1, **settings), key)
    for person in range(people):
        first = 1 + person * images
        records[count + 1 + person] = packed([float(first), float(first + images)], b"")
    (folder / "property").parent.mkdir(parents=True, exist_ok=True)
    (folder / "property").write_text(f"{people},112,112")
    return write_records(folder, records)


def write_bin(path, pairs, protocol=4):
    """pairs: (bytes, bytes, same)."""
    images = [image for first, second, _ in pairs for image in (first, second)]
    path.write_bytes(pickle.dumps((images, [bool(same) for _, _, same in pairs]), protocol))
    return path


def python_2_bin(pairs):
    """The same as Python 2 wrote it, protocol 2: strings as BINSTRING."""
    opcodes = [b"\x80\x02]q\x00("]
    for first, second, _ in pairs:
        opcodes += [b"T" + struct.pack("<i", len(image)) + image for image in (first, second)]
    opcodes += [b"e]q\x01(", *(b"\x88" if same else b"\x89" for _, _, same in pairs), b"e\x86q\x02."]
    return b"".join(opcodes)


def problem_of(store, item):
    """Why an image cannot be read; empty if it can."""
    try:
        store.read(item)
    except ValueError as error:
        return str(error)
    return ""


@st.composite
def damage(draw, content):
    """Bytes changed, cut out, or put in."""
    mutated = bytearray(content)
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, max(0, len(mutated) - 1)))
        kind = draw(st.sampled_from(["change", "cut", "insert", "end"]))
        if kind == "change" and mutated:
            mutated[place] = draw(st.integers(0, 255))
        elif kind == "cut":
            del mutated[place : place + draw(st.integers(1, 40))]
        elif kind == "insert":
            mutated[place:place] = draw(st.binary(min_size=1, max_size=8))
        else:
            del mutated[place:]
    return bytes(mutated)
