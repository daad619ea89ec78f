"""A model on pairs and templates, against the protocol computed independently with NumPy and PIL."""

import io
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from support.face_files import face, face_folder, write_bin

from softwarp.faces import verify as verification
from softwarp.faces.pairs import read_pairs
from softwarp.faces.templates import read_template_pairs, read_templates
from softwarp.faces.verify import pool_templates, verify, verify_templates, worst
from softwarp.inference import EmbeddingModel
from softwarp.metrics import pair_distances
from softwarp.models.embedder import Embedder
from softwarp.report.verification import SHOWN, pairs_table, write_verification

PEOPLE, IMAGES = 6, 4


def model(distance="euclidean"):
    torch.manual_seed(0)
    network = Embedder("small_conv", 16).eval()
    return EmbeddingModel(network, distance, resize=28, crop=28, device=torch.device("cpu"))


def listed(count=60, seed=0):
    """(person, number) twice and whether they are one person; alternating, so that any fold has both."""
    generator, rows = np.random.default_rng(seed), []
    while len(rows) < count:
        first, second = generator.integers((PEOPLE, IMAGES)), generator.integers((PEOPLE, IMAGES))
        same = len(rows) % 2 == 0
        if same:
            second[0] = first[0]
        if (first != second).any() and (first[0] == second[0]) == same:
            rows.append((tuple(first.tolist()), tuple(second.tolist()), same))
    return rows


def path_of(person, number):
    return f"person_{person:02d}/person_{person:02d}_{number + 1:04d}.jpg"


@pytest.fixture
def lists(tmp_path):
    """The same pairs as LFW's list, as a table of paths and as a .bin file."""
    face_folder(tmp_path / "images", people=PEOPLE, images=IMAGES, size=28, noise=40)
    rows = listed()
    lines = ["10\t3"]
    for (person, number), (other, another), same in rows:
        left = f"person_{person:02d}\t{number + 1}"
        lines.append(f"{left}\t{another + 1}" if same else f"{left}\tperson_{other:02d}\t{another + 1}")
    (tmp_path / "pairs.txt").write_text("\n".join(lines))
    table = [f"{n // 6}\t{path_of(*a)}\t{path_of(*b)}\t{int(same)}" for n, (a, b, same) in enumerate(rows)]
    (tmp_path / "pairs.tsv").write_text("\n".join(["fold\tfirst\tsecond\tsame", *table]))
    contents = [[face(p, n + 1, size=28, noise=40) for p, n in pair[:2]] for pair in rows]
    write_bin(
        tmp_path / "pairs.bin", [(*images, same) for images, (*_, same) in zip(contents, rows, strict=True)]
    )
    return tmp_path


@torch.no_grad()
def embedding(network, content):
    """Of one image and its mirror image, by PIL."""
    found = []
    for mirrored in (False, True):
        image = Image.open(io.BytesIO(content)).convert("RGB").convert("L")
        pixels = np.asarray(image)[:, ::-1] if mirrored else np.asarray(image)
        found.append(network(torch.from_numpy(pixels.copy())[None, None])[0].double().numpy())
    return (found[0] + found[1]) / 2


def protocol(distances, same, folds=10):
    """Accuracy of each fold at the threshold that is best on the others: every midpoint is tried."""
    size, accuracies = len(distances) // folds, []
    for fold in range(folds):
        inside = np.arange(len(distances)) // size == fold
        levels = np.sort(distances[~inside])
        tried = [levels[0], *((levels[1:] + levels[:-1]) / 2), levels[-1] + 1]
        scores = [np.mean((distances[~inside] < threshold) == same[~inside]) for threshold in tried]
        accuracies.append(np.mean((distances[inside] < tried[int(np.argmax(scores))]) == same[inside]))
    return np.mean(accuracies), np.std(accuracies)


@pytest.mark.parametrize("distance", ["euclidean", "cosine"])
def test_the_protocol_equals_an_independent_computation(lists, distance):
    found = verify(model(distance), read_pairs(lists / "pairs.txt"))
    network, distances = model().network, []
    for first, second, _ in listed():
        left, right = (embedding(network, face(p, n + 1, size=28, noise=40)) for p, n in (first, second))
        if distance == "cosine":
            distances.append(1 - left @ right / np.sqrt(left @ left) / np.sqrt(right @ right))
        else:
            distances.append(np.sqrt(((left - right) ** 2).sum()))
    same = np.array([same for *_, same in listed()])
    np.testing.assert_allclose(found.distances, distances, rtol=1e-4, atol=1e-6)
    accuracy, deviation = protocol(np.array(distances), same)
    assert found.metrics["accuracy"] == pytest.approx(accuracy, abs=1e-12)
    assert found.metrics["accuracy_std"] == pytest.approx(deviation, abs=1e-12)
    assert 0.5 < accuracy < 1


def test_bin_files_and_lists_of_the_same_images_give_the_same_figures(lists):
    text, table, packed = (verify(model(), read_pairs(lists / f"pairs.{e}")) for e in ("txt", "tsv", "bin"))
    assert text.metrics == table.metrics == packed.metrics
    assert text.distances.tolist() == table.distances.tolist() == packed.distances.tolist()
    assert len(text.pairs.images) < len(packed.pairs.images) == 120


def test_pairs_that_cannot_be_read_are_left_out_of_their_folds(lists):
    whole = verify(model(), read_pairs(lists / "pairs.tsv"))
    broken = lists / "images" / path_of(2, 1)
    broken.write_text("no image")
    found = verify(model(), read_pairs(lists / "pairs.txt"))
    kept = [n for n, (first, second, _) in enumerate(listed()) if (2, 1) not in (first, second)]
    assert found.left_out == (path_of(2, 1),)
    assert found.distances.tolist() == whole.distances[kept].tolist()
    assert found.pairs.folds.tolist() == [n // 6 for n in kept]
    row = [cell.text for cell in pairs_table([found]).rows[0]]
    assert row[1] == f"{len(kept)} of {len(listed())}"
    assert row[3] != "-"
    assert row[4:6] == ["-", "-"]  # no hundred different pairs
    for path in (lists / "images").rglob("*.jpg"):
        path.write_text("no image")
    with pytest.raises(ValueError, match="no pair can be read"):
        verify(model(), read_pairs(lists / "pairs.txt"))


def test_the_worst_mistakes_come_first(lists):
    found = verify(model(), read_pairs(lists / "pairs.txt"))
    missed, taken = worst(found, 1000)
    threshold, distances, same = found.metrics["best_threshold"], found.distances, found.pairs.same
    assert {*missed, *taken} == set(np.flatnonzero((distances < threshold) != same).tolist())
    assert missed
    assert taken
    assert distances[missed].tolist() == sorted(distances[missed], reverse=True)
    assert distances[taken].tolist() == sorted(distances[taken])
    assert worst(found, 1) == (missed[:1], taken[:1])


def test_the_page_shows_the_worst_mistakes_as_pairs(lists):
    found = verify(model(), read_pairs(lists / "pairs.txt"))
    about = {"model": "<b>run</b>", "distance": "euclidean", "command": "softwarp verify"}
    page = write_verification(lists / "out", [found], {"rank@1": 0.5, "mated": 3}, about).read_text()
    mistakes = sum(len(each) for each in worst(found, SHOWN))
    assert mistakes
    assert page.count('src="data:image/webp') == 2 * mistakes
    assert "&lt;b&gt;run" in page
    assert "<td>50.00</td>" in page
    rows = (lists / "out" / "pairs.csv").read_text().splitlines()
    assert len(rows) == 1 + len(found.distances)


def test_tar_is_shown_over_all_pairs_and_fold_by_fold(lists):
    found = verify(model(), read_pairs(lists / "pairs.txt"))
    assert found.metrics["fold_tar@far=0.1"] > found.metrics["fold_tar_std@far=0.1"] > 0
    found = replace(found, metrics=found.metrics | {"tar@far=0.1": 0.123, "fold_tar@far=0.1": 0.456})
    about = {"model": "run", "distance": "euclidean", "command": "softwarp verify"}
    page = write_verification(lists / "out", [found], {}, about).read_text()
    (one_set,) = json.loads((lists / "out" / "verification.json").read_text())["sets"].values()
    assert one_set["metrics"] == found.metrics
    table = pairs_table([found])
    shown = dict(zip(table.heads, [cell.text for cell in table.rows[0]], strict=True))
    assert (shown["TAR@0.1"], shown["fold TAR@0.1"]) == ("12.3", "45.6")
    for text in ("TAR@0.1", "fold TAR@0.1", "12.3", "45.6"):
        assert f">{text}<" in page


def write_templates(root):
    """Two templates of each person, of which the last one is in no gallery; media of one or two images."""
    rows = ["image\ttemplate\tmedia\tperson\trole"]
    for person in range(PEOPLE):
        for number in range(IMAGES):
            role = "probe" if number >= 2 or person == PEOPLE - 1 else "gallery"
            medium = "clip" if number == 1 else "photo"
            rows.append(f"{path_of(person, number)}\t{person}-{number // 2}\t{medium}\tP{person}\t{role}")
    rows.append(f"{path_of(0, 2)}\t0-0\tclip\tP0\tgallery")  # a second image of that medium
    (root / "templates.tsv").write_text("\n".join(rows))
    return root / "templates.tsv"


def test_templates_are_means_over_media_of_means_over_images(lists):
    templates = read_templates(write_templates(lists))
    embeddings, broken = model().embed_store(templates.images, mirrored=True)
    assert not broken
    pooled = pool_templates(embeddings, templates)
    assert pooled.shape == (2 * PEOPLE, 16)
    first = templates.names.index("0-0")
    photo, clip = embeddings[0], (embeddings[1] + embeddings[-1]) / 2
    torch.testing.assert_close(pooled[first], (photo + clip) / 2)
    embeddings[1] = torch.nan  # cannot be read
    torch.testing.assert_close(pool_templates(embeddings, templates)[first], (photo + embeddings[-1]) / 2)
    embeddings[:2], embeddings[-1] = torch.nan, torch.nan
    with pytest.raises(ValueError, match="template 0-0"):
        pool_templates(embeddings, templates)


def test_images_that_a_template_lost_are_named(lists):
    templates = read_templates(write_templates(lists))
    assert verify_templates(model(), templates)[1] == ()
    (lists / "images" / path_of(2, 1)).write_text("no image")
    assert verify_templates(model(), templates)[1] == (path_of(2, 1),)


def test_distances_of_millions_of_pairs_are_made_in_parts(lists, monkeypatch):
    whole, sizes = verify(model(), read_pairs(lists / "pairs.txt")), []

    def noted(left, right, *, distance):
        sizes.append(len(left))
        return pair_distances(left, right, distance=distance)

    monkeypatch.setattr(verification, "pair_distances", noted)
    monkeypatch.setattr(verification, "PAIRS_AT_ONCE", 25)
    assert verify(model(), read_pairs(lists / "pairs.txt")).distances.tolist() == whole.distances.tolist()
    assert sizes == [25, 25, 10]
    templates = read_templates(write_templates(lists))
    (lists / "template_pairs.txt").write_text("0-0 0-1 1\n0-0 1-1 0\n" * 20)
    verify_templates(model(), templates, read_template_pairs(lists / "template_pairs.txt", templates))
    assert sizes[3:] == [25, 15]


@pytest.mark.parametrize("distance", ["euclidean", "cosine"])
def test_one_to_one_and_one_to_many(lists, distance):
    templates = read_templates(write_templates(lists))
    people = [f"{a}-0 {b}-1 {int(a == b)}" for a in range(PEOPLE) for b in range(PEOPLE)]
    (lists / "template_pairs.txt").write_text("\n".join(people * 20))
    pairs = read_template_pairs(lists / "template_pairs.txt", templates)
    found, _ = verify_templates(model(distance), templates, pairs)
    pooled = pool_templates(model().embed_store(templates.images, mirrored=True)[0], templates).double()
    if distance == "cosine":
        pooled = pooled / pooled.norm(dim=1, keepdim=True)
    probes, gallery = templates.probes.tolist(), templates.gallery.tolist()
    hits = []
    for probe in probes:
        person = templates.people[probe]
        if person != f"P{PEOPLE - 1}":
            nearest = min(gallery, key=lambda item: float((pooled[probe] - pooled[item]).norm()))
            hits.append(templates.people[nearest] == person)
    assert found["rank@1"] == pytest.approx(np.mean(hits))
    assert (found["mated"], found["others"]) == (PEOPLE - 1, 2)
    assert {"tar@far=0.01", "tpir@fpir=0.1", "auc"} <= found.keys()
    assert np.sum(~pairs[1]) < 1000  # too few for the rest
    assert not {"tar@far=0.001", "tar@far=1e-06"} & found.keys()
    assert "accuracy" not in found
    few = pairs[0][[0, 1]], pairs[1][[0, 1]]  # there are no folds to fill
    assert verify_templates(model(distance), templates, few)[0]["auc"] in (0.0, 0.5, 1.0)
    (lists / "plain.txt").write_text(f"{path_of(0, 0)} 1 1")
    plain = read_templates(lists / "plain.txt")
    with pytest.raises(ValueError, match="nothing to verify"):
        verify_templates(model(), plain)
