import pytest
from support.layouts import make_cub, write

from softwarp.data.tables import find_root, read_table


def test_a_link_to_nothing_is_missing(tmp_path):
    write(tmp_path, "wren/a.jpg")
    (tmp_path / "wren" / "b.jpg").symlink_to(tmp_path / "gone.jpg")
    with pytest.raises(FileNotFoundError, match=r"1 of 2 .*: wren/b\.jpg;"):
        read_table("folder", tmp_path, strict=True)
    table = read_table("folder", tmp_path)
    assert table.paths == ("wren/a.jpg", "wren/b.jpg")
    assert "1 of 2 " in table.notes[0]


@pytest.mark.parametrize("path", ["/softwarp-has-no-such-image.jpg", "/softwarp-has-no/such.jpg"])
def test_a_missing_absolute_path_is_named_whole(tmp_path, path):
    write(tmp_path, path.lstrip("/"))  # not taken for the one below the CSV's folder
    write(tmp_path, "list.csv", text=f"path,label\n{path},wren\n")
    with pytest.raises(FileNotFoundError, match=f"1 of 1 .*: {path};"):
        read_table("csv", tmp_path)


def test_missing_images_are_counted_and_the_first_three_named(tmp_path):
    paths = make_cub(tmp_path)
    for path in paths[:5]:
        (tmp_path / "images" / path).unlink()
    with pytest.raises(FileNotFoundError) as caught:
        read_table("cub", tmp_path, strict=True)
    table = read_table("cub", tmp_path)
    assert len(table.paths) == 8
    for text in (str(caught.value), *table.notes):
        assert "5 of 8 " in text
        assert ", ".join(f"images/{path}" for path in paths[:3]) + ", ..." in text
        assert paths[3] not in text
    assert "skip" in table.notes[0]


def test_if_all_images_are_missing_there_is_nothing_to_skip(tmp_path):
    for path in make_cub(tmp_path):
        (tmp_path / "images" / path).unlink()
    with pytest.raises(FileNotFoundError, match="8 of 8 "):
        read_table("cub", tmp_path)


def test_a_depth_is_for_folders(tmp_path):
    make_cub(tmp_path)
    with pytest.raises(ValueError, match=r"data\.depth .* cub"):
        read_table("cub", tmp_path, depth=2)


def test_an_unknown_layout_names_the_nearest():
    with pytest.raises(ValueError, match=r"'in-shop'.*did you mean inshop"):
        read_table("in-shop", None)


def test_a_root_that_is_not_given_or_not_there_says_what_to_give(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"cub .*data\.root=FOLDER"):
        find_root("cub", None)
    with pytest.raises(FileNotFoundError, match=r"gone .*data\.root"):
        find_root("cub", str(tmp_path / "gone"))
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "birds").mkdir()
    assert find_root("cub", "~/birds") == tmp_path / "birds"
