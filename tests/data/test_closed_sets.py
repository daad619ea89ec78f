"""Closed sets: the same classes train and are judged, by other images."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.pictures import pictures

from softwarp.data.class_groups import held_out_images
from softwarp.data.splits import SplitPlan, divide, limit, protocol_line
from softwarp.data.tables import read_table

ROLES = ("train", "train", "train", "validation", "test")


def images(seed, classes, roles):
    """Labels and splits of so many classes, most of them on both sides."""
    generator = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), generator.integers(1, 9, classes))
    splits = generator.choice(roles, len(labels))
    for label in range(classes):  # a class in three lacks a side
        own = np.flatnonzero(labels == label)
        if label % 3 and len(own) > 1:
            splits[own[0]], splits[own[1]] = "train", "test"
    return labels, splits


def divided(labels, splits, *plan, **settings):
    return divide(labels, splits.tolist(), SplitPlan(*plan, **settings))


SETS = st.tuples(st.integers(0, 2**32 - 1), st.integers(8, 40), st.sampled_from([ROLES, ("train", "test")]))


def closed_validation(labels, splits):
    """Whether there is no validation split, or most of its classes train."""
    judged = np.unique(labels[splits == "validation"])
    return not len(judged) or 2 * np.isin(judged, labels[splits == "train"]).sum() > len(judged)


def closed(table):
    """The labels and splits, or None where less than most test classes train: those are refused."""
    labels, splits = images(*table)
    tested, trained = (
        np.unique(labels[splits == "test"]),
        labels[(splits == "train") | (splits == "validation")],
    )
    return (labels, splits) if 2 * np.isin(tested, trained).sum() > len(tested) else None


@given(SETS, st.sampled_from(["validation", "test"]))
def test_no_image_trains_and_asks_and_every_query_has_something_to_find(table, split):
    found = closed(table)
    if found is None:
        return
    labels, splits = found
    if split == "validation" and not closed_validation(labels, splits):
        with pytest.raises(ValueError, match=r"validation|in both"):
            divided(labels, splits, split)
        return
    division = divided(labels, splits, split)
    assert division.closed
    assert not set(division.train.tolist()) & set(division.queries.tolist())
    assert not set(division.queries.tolist()) & set(division.gallery.tolist())
    assert set(labels[division.queries]) <= set(labels[division.gallery])
    assert division.gallery.tolist() == division.train.tolist()
    assert not (splits[division.train] == "test").any()
    again = divided(labels, splits, split)
    assert (division.train.tolist(), division.queries.tolist()) == (
        again.train.tolist(),
        again.queries.tolist(),
    )
    if split == "test":
        assert set(splits[division.queries]) == {"test"}
        assert len(division.train) == (splits != "test").sum()
        lost = np.flatnonzero((splits == "test") & ~np.isin(labels, labels[splits != "test"]))
        assert sorted([*division.queries, *lost]) == np.flatnonzero(splits == "test").tolist()
        assert (f"left out: {len(lost):,} test image" in division.note) == bool(len(lost))
    else:
        assert "test" not in splits[division.queries]


@given(SETS, st.sampled_from(["validation", "test"]), st.randoms(use_true_random=False))
def test_names_of_classes_and_rows_of_others_do_not_matter(table, split, chance):
    found = closed((*table[:2], ("train", "test")))
    if found is None:
        return
    labels, splits = found
    names = list(range(labels.max() + 1))
    chance.shuffle(names)  # other numbers for the same classes
    whose = list(range(len(names)))
    chance.shuffle(whose)
    rows = np.concatenate([np.flatnonzero(labels == label) for label in whose])  # classes in another order

    def outcome(division, rows):
        return [sorted(rows[part].tolist()) for part in (division.train, division.queries, division.gallery)]

    expected = outcome(divided(labels, splits, split), np.arange(len(labels)))
    assert outcome(divided(np.array(names)[labels], splits, split), np.arange(len(labels))) == expected
    assert outcome(divided(labels[rows], splits[rows], split), rows) == expected


@given(st.lists(st.integers(1, 40), min_size=1, max_size=30))
def test_a_quarter_of_each_class_is_held_out_but_never_all_of_it(sizes):
    labels = np.repeat(np.arange(len(sizes)), sizes)
    held = held_out_images(labels, np.arange(len(labels)))
    assert held.tolist() == sorted(set(held.tolist()))
    counts = np.bincount(labels[held], minlength=len(sizes)).tolist()
    assert counts == [0 if size == 1 else max(1, size // 4) for size in sizes]


def test_images_are_drawn_not_the_first_or_the_last():
    labels = np.zeros(40, dtype=int)
    held = held_out_images(labels, np.arange(40)).tolist()
    assert held not in (list(range(10)), list(range(30, 40)))


SMALL = np.repeat(np.arange(6), 4)
SIDES = np.array(["train", "train", "train", "test"] * 6)


def test_without_a_validation_split_images_are_held_out_and_test_images_left_alone():
    division = divided(SMALL, SIDES, "validation")
    assert len(division.train) == len(division.gallery) == 12
    assert np.bincount(SMALL[division.queries]).tolist() == [1] * 6
    assert set(SIDES[division.queries]) == {"train"}


def test_a_given_validation_split_is_judged_and_joins_training_for_the_test():
    splits = np.array(["train", "validation", "train", "test"] * 6)
    validation, test = divided(SMALL, splits, "validation"), divided(SMALL, splits, "test")
    assert set(splits[validation.train]) == set(splits[validation.gallery]) == {"train"}
    assert set(splits[validation.queries]) == {"validation"}
    assert len(test.train) == len(test.gallery) == 18


def test_train_and_validation_alone_are_a_closed_set_for_the_protocol_validation():
    splits = np.array(["train", "validation", "train", "train"] * 6)
    division = divided(SMALL, splits, "validation")
    assert division.closed
    assert (len(division.train), len(division.queries)) == (18, 6)
    with pytest.raises(ValueError, match=r"evaluation\.split=validation"):
        divided(SMALL, splits, "test")


def test_a_validation_split_of_other_classes_is_refused_by_name():
    splits = np.array(
        ["train", "train", "train", "test"] * 3 + ["validation", "validation", "validation", "test"] * 3
    )
    with pytest.raises(ValueError, match="validation split"):
        divided(SMALL, splits, "validation")
    assert divided(SMALL, splits, "test").closed


def test_a_few_test_classes_that_train_are_a_slip_and_most_are_not():
    names = ["wren", "gull", "plover", "owl", "tern", "rail"]
    slip = ["train"] * 9 + ["test"] * 15  # class 2 is on both sides, 3 to 5 are new
    with pytest.raises(ValueError, match=r"class 'plover'.*1 of 4.*same side.*omit the splits"):
        divide(SMALL, slip, SplitPlan("test"), names=names)
    splits = SIDES.copy()
    splits[20:] = "test"  # one class of six is new
    division = divide(SMALL, splits.tolist(), SplitPlan("test"), names=names)
    assert division.note == "left out: 4 test images of 1 class without an image to find: 'rail'"
    assert len(division.queries) == 5


def test_a_given_gallery_stays_the_gallery():
    labels = np.repeat(np.arange(5), 4)
    splits = np.array(
        ["train", "train", "query", "gallery"] * 4 + ["gallery"] * 4
    )  # the last is a distractor
    test = divided(labels, splits, "test")
    assert test.closed
    assert set(splits[test.train]) == {"train"}
    assert set(splits[test.queries]) == {"query"}
    assert len(test.gallery) == 8
    validation = divided(labels, splits, "validation")
    assert set(splits[validation.queries]) == set(splits[validation.gallery]) == {"train"}
    splits[3] = "train"  # nothing to find for the query of class 0
    assert "of 1 class without an image to find: 0" in divided(labels, splits, "test").note


@pytest.mark.parametrize("given", [False, True])
def test_a_fold_holds_out_classes_and_images_of_those_that_train(given):
    labels = np.repeat(np.arange(8), 5)
    splits = np.array([*["train", "train", "train"], "validation" if given else "train", "test"] * 8)
    judged, kept = [], []
    for fold in (0, 1):
        division = divided(labels, splits, "validation", fold, 2, 0, images=True)
        assert not division.closed
        assert division.gallery is None
        assert not set(labels[division.train]) & set(labels[division.queries])
        assert set(labels[division.kept]) == set(labels[division.train])
        parts = [*division.train, *division.kept, *division.queries]
        assert sorted(parts) == np.flatnonzero(splits != "test").tolist()
        assert not given or set(splits[division.kept]) == {"validation"}
        judged += np.unique(labels[division.queries]).tolist()
        kept += labels[division.kept].tolist()
        plain = divided(labels, splits, "validation", fold, 2, 0)
        assert plain.kept is None
        assert len(plain.train) == len(division.train) + len(division.kept)
    assert sorted(judged) == sorted(kept) == list(range(8))


def test_what_is_chosen_before_validation_looks_at_none_of_its_images():
    whole = divided(SMALL, SIDES, "validation")
    for fold in (0, 1):
        division = divided(SMALL, SIDES, "validation", fold, 2, 0, "validation", images=True)
        parts = [*division.train, *division.kept, *division.queries]
        assert sorted(parts) == whole.train.tolist()


def test_a_fold_judged_on_test_images_of_classes_that_train_is_refused():
    with pytest.raises(ValueError, match=r"evaluation\.fold"):
        divided(SMALL, SIDES, "test", 0, 2)


@pytest.mark.parametrize("images", [False, True])
def test_an_open_set_keeps_no_images(images):
    splits = ["train"] * 16 + ["test"] * 8
    division = divide(SMALL, splits, SplitPlan("validation", 0, 2, images=images))
    assert division.kept is None
    assert len(division.train) + len(division.queries) == 16


def test_the_second_half_of_the_classes_is_new_whatever_the_split_says():
    division = divided(SMALL, SIDES, "test", test_classes="second_half")
    assert not division.closed
    assert (len(division.train), len(division.queries)) == (12, 12)
    assert len(divided(SMALL, SIDES, "test", test_classes="none").train) == 24


def test_two_classes_are_enough_and_one_is_not():
    labels, splits = np.array([0, 0, 1, 1]), np.array(["train", "test"] * 2)
    assert len(divided(labels, splits, "test").queries) == 2
    with pytest.raises(ValueError, match="two classes"):
        divided(np.zeros(4, dtype=int), splits, "test")


def test_max_classes_takes_the_same_ones_on_all_sides():
    splits = SIDES.copy()
    splits[:4] = "train"  # the first class is not judged
    division = limit(divided(SMALL, splits, "test"), SMALL, 2)
    for part in (division.train, division.queries, division.gallery):
        assert np.unique(SMALL[part]).tolist() == [1, 2]
    assert "the same 2 classes" in protocol_line(division, SMALL, "test")


def test_the_protocol_is_said_in_one_line():
    closed = divided(SMALL, SIDES, "test")
    assert protocol_line(closed, SMALL, "test") == (
        "closed set: the same 6 classes train and are judged; 6 test images are "
        "looked up among 18 training images"
    )
    splits = SIDES.copy()
    splits[:4] = "train"
    assert "5 of the 6 classes that train are judged" in protocol_line(
        divided(SMALL, splits, "test"), SMALL, "test"
    )
    opened = divide(SMALL, ["train"] * 16 + ["test"] * 8, SplitPlan("test"))
    assert protocol_line(opened, SMALL, "test") == (
        "open set: 4 classes train, 2 others are judged; each of 8 test images is looked up among the others"
    )
    labels, galleries = np.repeat(np.arange(4), 3), np.array(["train", "query", "gallery"] * 4)
    line = protocol_line(divided(labels, galleries, "test"), labels, "test")
    assert "4 test images are looked up among 4 gallery images" in line
    none = divided(SMALL, SIDES, "test", test_classes="none")
    assert "all 6 train" in protocol_line(none, SMALL, "test")


def test_a_thousand_classes_are_divided_as_eight_are():
    for classes in (8, 1000):
        labels = np.repeat(np.arange(classes), 4)
        splits = np.array(["train", "train", "train", "test"] * classes)
        for split, trained, asked in (("test", 3, 1), ("validation", 2, 1)):
            division = divided(labels, splits, split)
            assert (len(division.train), len(division.queries)) == (trained * classes, asked * classes)


def test_folders_and_a_csv_file_are_divided_alike(tmp_path):
    rows = [
        (f"{split}/{name}/{number}.jpg", name, split)
        for split, count in (("train", 3), ("test", 2))
        for name in "abcd"
        for number in range(count)
    ]
    root = pictures(tmp_path / "images", *(path for path, _, _ in rows))
    text = "".join(f"{path},{name},{split}\n" for path, name, split in reversed(rows))
    (root.parent / "list.csv").write_text(
        "path,label,split\n" + text.replace("train/", "images/train/").replace("test/", "images/test/")
    )
    found = []
    for table in (read_table("folder", root), read_table("csv", tmp_path / "list.csv")):
        division = divide(table.labels, table.splits, SplitPlan("test"), names=table.names)
        assert division.closed
        found.append(
            [
                {table.paths[item].removeprefix("images/") for item in part}
                for part in (division.train, division.queries)
            ]
        )
    assert found[0] == found[1]
    assert [len(part) for part in found[0]] == [12, 8]
