import io
import json
import pickle
import struct
import subprocess
import sys
import zipfile

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from support.pictures import pictures
from support.results import RECIPE
from support.results import result as result_of
from support.tiny_runs import PHASE, tiny
from typer.testing import CliRunner

from softwarp import cli
from softwarp.data.embedding_files import load_embeddings, load_rows, load_tables, read_labels
from softwarp.evaluation import measure
from softwarp.metrics import bootstrap_over_classes, clustering_metrics, geometry_metrics, retrieval_metrics
from softwarp.runs.run import Run
from softwarp.training.train import train_recipe


@pytest.fixture
def table(tmp_path):
    """Forty embeddings of five classes with names, in every format there is."""
    generator = np.random.default_rng(0)
    numbers = np.arange(40) % 5
    points = (generator.normal(size=(5, 6))[numbers] + generator.normal(size=(40, 6))).astype(np.float32)
    names = [f"bird {number}" for number in numbers]
    np.save(tmp_path / "points.npy", points)
    np.savez(tmp_path / "points.npz", embeddings=points, labels=numbers, other=points[:3])
    save_file(
        {"embeddings": torch.from_numpy(points), "labels": torch.from_numpy(numbers)},
        tmp_path / "points.safetensors",
    )
    np.save(tmp_path / "labels.npy", numbers)
    (tmp_path / "labels.txt").write_text("\n".join(names) + "\n")
    (tmp_path / "labels.csv").write_text(
        "file,label\n" + "".join(f"{i}.png,{name}\n" for i, name in enumerate(names))
    )
    return tmp_path, points, numbers


def run(*arguments):
    result = CliRunner().invoke(cli.app, ["evaluate", *map(str, arguments)])
    assert result.exit_code == 0, (result.output, result.exception)
    return json.loads(result.stdout) if "--json" in arguments else result.stdout


def fails(monkeypatch, capsys, *arguments):
    """What the user reads on a mistake: one line, exit code 2."""
    monkeypatch.setattr(sys, "argv", ["softwarp", "evaluate", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 2
    text = capsys.readouterr().err
    assert text.startswith("error: ")
    assert "Traceback" not in text
    return text


@pytest.mark.parametrize("points", ["points.npy", "points.npz", "points.safetensors"])
@pytest.mark.parametrize("labels", ["labels.npy", "labels.txt", "labels.csv"])
def test_every_format_gives_the_same_numbers(table, points, labels):
    folder, array, numbers = table
    result = run(folder / points, "--labels", folder / labels, "--json", "--bootstrap", 0)
    assert result["metrics"] == retrieval_metrics(array, numbers)
    assert result["intervals"] == {}


@pytest.mark.parametrize("name", ["points.npz", "points.safetensors"])
def test_labels_may_be_in_the_same_file(table, name):
    folder, array, numbers = table
    assert run(folder / name, "--json")["metrics"] == retrieval_metrics(array, numbers)


def test_every_family_and_option(table):
    folder, array, numbers = table
    options = ["--metrics", "retrieval,clustering,geometry", "--ks", "1,3", "--map-ks", "5", "--ndcg-ks", "5"]
    result = run(folder / "points.npz", *options, "--distance", "cosine", "--seed", 3, "--json")
    expected = retrieval_metrics(array, numbers, ks=(1, 3), map_ks=(5,), ndcg_ks=(5,), distance="cosine")
    expected |= clustering_metrics(array, numbers, seed=3, distance="cosine")
    expected |= geometry_metrics(array, numbers, distance="cosine")
    assert result["metrics"] == pytest.approx(expected)
    assert set(result["metrics"]) == set(expected)
    assert result["distance"] == "cosine"
    low, high = result["intervals"]["recall@1"]
    assert low <= result["metrics"]["recall@1"] <= high
    assert low < high
    assert run(folder / "points.npz", *options, "--distance", "cosine", "--seed", 3, "--json") == result


def test_gallery_and_query_rows(table):
    folder, array, numbers = table
    asked = np.arange(40) % 3 == 0
    (folder / "rows.txt").write_text("\n".join(map(str, np.flatnonzero(asked))))
    split = run(folder / "points.npz", "--queries", folder / "rows.txt", "--json")
    expected = retrieval_metrics(
        array[asked], numbers[asked], gallery=array[~asked], gallery_labels=numbers[~asked]
    )
    assert split["metrics"] == expected
    np.save(folder / "q.npy", array[asked])
    np.save(folder / "g.npy", array[~asked])
    for name, chosen in (("q.txt", asked), ("g.txt", ~asked)):
        (folder / name).write_text("\n".join(f"bird {number}" for number in numbers[chosen]))
    files = [folder / "q.npy", "--labels", folder / "q.txt", "--gallery", folder / "g.npy"]
    assert run(*files, "--gallery-labels", folder / "g.txt", "--json")["metrics"] == expected


@pytest.mark.parametrize("name", ["proxy_nca_pp", "euclidean_softmax"])
def test_a_run_has_the_figures_of_its_result_to_the_digit(tmp_path, name):
    recipe = tiny(loss={"name": name}, phases=[PHASE], seed=3, evaluation={"ks": [1, 3, 10**6]})
    done = train_recipe(recipe, tmp_path / "run")
    result = run(tmp_path / "run", "--json")
    assert result["metrics"] == done.result().metrics
    assert result["distance"] == done.result().distance
    assert "recall@3" in result["metrics"]
    assert "recall@1000000" not in result["metrics"]  # a small test set lacks so many
    other = run(tmp_path / "run", "--json", "--seed", 4, "--ks", 2, "--metrics", "retrieval")["metrics"]
    assert "recall@2" in other
    assert "nmi" not in other


def test_a_run_with_a_gallery_searches_it_and_an_unfinished_one_is_named(table):
    folder, array, numbers = table
    done = Run.create(folder / "run", RECIPE)
    points, labels = torch.from_numpy(array), torch.from_numpy(numbers)
    arrays = {"embeddings": points[::2], "labels": labels[::2]}
    done.save_embeddings(arrays | {"gallery": points[1::2], "gallery_labels": labels[1::2]}, [])
    with pytest.raises(FileNotFoundError, match="run is not a finished"):
        CliRunner().invoke(cli.app, ["evaluate", str(folder / "run")], catch_exceptions=False)
    done.write_result(result_of(distance="cosine"))
    expected = retrieval_metrics(
        array[::2], numbers[::2], gallery=array[1::2], gallery_labels=numbers[1::2], distance="cosine"
    )
    measured = run(folder / "run", "--json", "--metrics", "retrieval")["metrics"]
    assert measured == expected


def test_the_table_for_people(table):
    folder, array, numbers = table
    text = run(folder / "points.npz")
    value = retrieval_metrics(array, numbers)["map@r"]
    assert f"{100 * value:.1f}" in text
    assert "95% interval" in text
    assert "40 x 6, 5 classes, euclidean" in text
    assert "95% interval" not in run(folder / "points.npz", "--bootstrap", 0)


def test_the_bar_is_for_terminals_and_reaches_its_end(table, monkeypatch, capsys):
    folder, _, _ = table
    words = ["softwarp", "evaluate", str(folder / "points.npz"), "--metrics", "retrieval,clustering,geometry"]
    monkeypatch.setattr(sys, "argv", words)
    for terminal in (False, True):
        monkeypatch.setattr(sys.stderr, "isatty", lambda terminal=terminal: terminal)
        cli.app(standalone_mode=False)
        assert ("100%" in capsys.readouterr().err) == terminal


def test_infinite_values_are_null_in_json(tmp_path):
    np.savez(tmp_path / "flat.npz", embeddings=np.ones((4, 3)), labels=np.array([0, 0, 1, 1]))
    result = run(tmp_path / "flat.npz", "--metrics", "geometry", "--json")
    assert result["metrics"]["separability_ratio"] is None


def test_help_explains_each_metric():
    text = CliRunner().invoke(cli.app, ["evaluate", "--help"]).stdout
    names = [
        *measure(torch.rand(6, 2), torch.arange(6) % 2, families=("retrieval", "clustering", "geometry"))[
            "metrics"
        ]
    ]
    lines = [line.strip() for line in text.splitlines()]
    wanted = {name.replace("@1", "@K") if "recall" in name else name for name in names} | {"map@K", "ndcg@K"}
    wanted -= {"recall@2", "recall@4", "recall@8", "queries", "queries_without_positives"}
    assert len(wanted) == 18
    for name in wanted:
        assert any(line.startswith(name + " ") and len(line) > 30 for line in lines), name


def test_mistakes_are_one_line_and_exit_code_2(table, monkeypatch, capsys):
    folder, array, numbers = table
    labels = ["--labels", folder / "labels.txt"]
    points = folder / "points.npy"
    array = array.copy()
    array[[3, 7]] = np.nan
    np.save(folder / "nan.npy", array)
    np.save(folder / "flat.npy", array[0])
    np.save(folder / "text.npy", np.array([["a"]]))
    (folder / "broken.npy").write_bytes(b"\x93NUMPY nonsense")
    (folder / "broken.npz").write_bytes(b"PK nonsense")
    (folder / "broken.safetensors").write_bytes(b"nonsense")
    (folder / "short.txt").write_text("a\nb\n")
    (folder / "gap.txt").write_text("a\n\n" + "b\n" * 38)
    (folder / "gap.csv").write_text("label\na\n\n" + "b\n" * 38)
    (folder / "wide.csv").write_text("x,y\n1,2\n")
    (folder / "alone.txt").write_text("\n".join(map(str, range(40))))
    (folder / "rows.txt").write_text("0\n40\n")
    (folder / "few.txt").write_text("0\n1\n")
    (folder / "twice.txt").write_text("1\n1\n")
    (folder / "words.txt").write_text("one\n")
    (folder / "all.txt").write_text("\n".join(map(str, range(40))))
    np.save(folder / "floats.npy", numbers / 2)
    with (folder / "pickled.npy").open("wb") as file:
        np.save(file, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    cases = [
        ([folder / "nan.npy", *labels], r"2 row(s): 3, 7"),
        ([folder / "flat.npy", *labels], "float32 of shape [6]"),
        ([folder / "text.npy", *labels], "<U1"),
        ([folder / "broken.npy", *labels], "broken.npy cannot"),
        ([folder / "broken.npz", *labels], "broken.npz cannot"),
        ([folder / "broken.safetensors", *labels], "broken.safetensors cannot"),
        ([folder / "pickled.npy", *labels], "pickle"),
        ([folder / "none.npy", *labels], "none.npy"),
        ([folder / "labels.txt", *labels], ".npy, .npz, .safetensors"),
        ([points], "--labels"),
        ([points, "--labels", folder / "short.txt"], "2 labels for 40 embeddings"),
        ([points, "--labels", folder / "gap.txt"], "row 1"),
        ([points, "--labels", folder / "gap.csv"], "row 1"),
        ([points, "--labels", folder / "wide.csv"], "`label`"),
        ([points, "--labels", folder / "floats.npy"], "float64"),
        ([points, "--labels", folder / "alone.txt"], "no query"),
        ([points, *labels, "--queries", folder / "rows.txt"], "row 40"),
        ([points, *labels, "--queries", folder / "twice.txt"], "twice.txt: "),
        ([points, *labels, "--queries", folder / "words.txt"], "'one'"),
        ([points, *labels, "--queries", folder / "all.txt"], "all.txt names every row"),
        ([points, *labels, "--queries", folder / "rows.txt", "--gallery", points], "--gallery or --queries"),
        ([points, *labels, "--gallery-labels", folder / "labels.txt"], "needs --gallery"),
        ([points, *labels, "--gallery", points], "--gallery-labels"),
        ([points, *labels, "--metrics", "recall"], "retrieval, clustering, geometry"),
        ([points, *labels, "--ks", "1;2"], "1,2,4,8"),
        ([points, *labels, "--ks", "0"], "K is 0"),
        ([points, *labels, "--ks", "1,5000"], "K is 5000, but each query searches 39 items"),
        ([points, *labels, "--map-ks", "9" * 30], "searches 39 items"),
        ([points, *labels, "--ndcg-ks", "40"], "K is 40"),
        ([points, *labels, "--queries", folder / "few.txt", "--ks", "39"], "searches 38 items"),
        ([points, *labels, "--distance", "manhattan"], "euclidean, cosine"),
        ([folder / "points.npz", "--key", "colour"], "embeddings, labels, other"),
        ([folder, *labels], "not a finished run"),
    ]
    for arguments, message in cases:
        assert message in fails(monkeypatch, capsys, *arguments), message


@pytest.mark.parametrize(
    ("name", "shape"),
    [("one.npy", (10**12, 512)), ("wide.npy", (2**40, 2**40)), ("named.npz", (10**12, 512))],
)
def test_a_header_that_promises_more_than_the_file_holds_is_not_believed(tmp_path, name, shape, monkeypatch):
    monkeypatch.setattr(np, "load", lambda *_, **__: pytest.fail("room was made for what the header says"))
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": "<f4", "fortran_order": False, "shape": shape})
    content = head.getvalue() + bytes(100)
    if name.endswith(".npz"):
        with zipfile.ZipFile(tmp_path / name, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("embeddings.npy", content)
    else:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=f"{name} .*{shape[0]}, {shape[1]}.* 100 bytes"):
        load_embeddings(tmp_path / name)


def test_a_safetensors_header_that_promises_too_much_is_an_error(tmp_path):
    for offsets in ([0, 10**12 * 4], [0, 100]):
        entry = {"dtype": "F32", "shape": [10**12, 1], "data_offsets": offsets}
        head = json.dumps({"embeddings": entry}).encode()
        (tmp_path / "large.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + bytes(100))
        with pytest.raises(ValueError, match=r"large\.safetensors cannot be read"):
            load_embeddings(tmp_path / "large.safetensors")


@pytest.mark.parametrize("seed", [2**31, 2**70])
def test_a_seed_that_no_generator_takes_is_refused(table, seed):
    folder, array, numbers = table
    words = ["evaluate", str(folder / "points.npz"), "--seed", str(seed), "--metrics", "clustering"]
    result = CliRunner().invoke(cli.app, words)
    assert result.exit_code == 2
    assert "2147483647" in result.stderr
    with pytest.raises(ValueError, match=f"seed is {seed}; .* 2147483647"):
        clustering_metrics(array, numbers, seed=seed)
    with pytest.raises(ValueError, match=f"seed is {2**70}"):
        bootstrap_over_classes(torch.ones(40), numbers, seed=2**70)


def test_the_real_program(table):
    folder, array, numbers = table
    command = [sys.executable, "-c", "from softwarp.cli import main; main()", "evaluate"]
    good = [*command, folder / "points.npz", "--json"]
    done = subprocess.run(good, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["metrics"] == retrieval_metrics(array, numbers)
    wrong = subprocess.run([*command, folder / "none.npz"], capture_output=True, text=True, check=False)
    assert wrong.returncode == 2
    assert wrong.stderr.count("\n") == 1


def test_help_imports_nothing_heavy():
    code = (
        "import sys\nfrom typer.testing import CliRunner\nfrom softwarp import cli\n"
        "assert CliRunner().invoke(cli.app, ['evaluate', '--help']).exit_code == 0\n"
        "print(sorted({'torch', 'numpy', 'faiss', 'sklearn'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_half_precision_and_whole_numbers_are_read(tmp_path):
    save_file({"a": torch.ones(2, 3, dtype=torch.bfloat16)}, tmp_path / "a.safetensors")
    assert load_embeddings(tmp_path / "a.safetensors").dtype == torch.float32
    np.save(tmp_path / "b.npy", np.ones((2, 3), dtype=np.float16))
    assert load_embeddings(tmp_path / "b.npy").dtype == torch.float32
    save_file({"a": torch.ones(2, 3).to(torch.float8_e4m3fn)}, tmp_path / "e.safetensors")
    assert load_embeddings(tmp_path / "e.safetensors").dtype == torch.float32
    np.save(tmp_path / "c.npy", np.full((2, 3), 2**40 + 1))
    assert load_embeddings(tmp_path / "c.npy")[0, 0].item() == 2**40 + 1
    np.save(tmp_path / "d.npy", np.full((2, 3), 2**30 + 1, dtype=np.int32))
    assert load_embeddings(tmp_path / "d.npy")[0, 0].item() == 2**30 + 1


def test_several_arrays_need_a_key(tmp_path):
    np.savez(tmp_path / "a.npz", first=np.ones((2, 3)), second=np.zeros((2, 3)))
    with pytest.raises(ValueError, match="first, second"):
        load_embeddings(tmp_path / "a.npz")
    assert load_embeddings(tmp_path / "a.npz", "second").sum() == 0
    with pytest.raises(ValueError, match="`labels`"):
        read_labels(tmp_path / "a.npz")


def test_an_archive_called_npy_and_a_damaged_one_are_named(tmp_path):
    with (tmp_path / "a.npy").open("wb") as file:
        np.savez(file, embeddings=np.ones((2, 3)))
    for load in (load_embeddings, read_labels):
        with pytest.raises(ValueError, match=r"a\.npy .*\.npz"):
            load(tmp_path / "a.npy")
    np.savez_compressed(tmp_path / "b.npz", embeddings=np.random.default_rng(0).normal(size=(99, 9)))
    whole = (tmp_path / "b.npz").read_bytes()
    start = 30 + sum(struct.unpack("<HH", whole[26:30]))  # of what is compressed
    for place in (start, start + 99):
        (tmp_path / "b.npz").write_bytes(whole[:place] + b"\xff" + whole[place + 1 :])
        with pytest.raises(ValueError, match="cannot be read"):
            load_embeddings(tmp_path / "b.npz")


def test_the_same_name_is_the_same_class_across_files(tmp_path):
    np.save(tmp_path / "q.npy", np.ones((1, 2)))
    np.save(tmp_path / "g.npy", np.ones((2, 2)))
    (tmp_path / "q.txt").write_text("wren")
    (tmp_path / "g.txt").write_text("gull\nwren")
    tables = load_tables(*(tmp_path / name for name in ("q.npy", "q.txt", "g.npy", "g.txt")), None, None)
    assert tables[1].tolist() == [1]
    assert tables[3].tolist() == [0, 1]
    np.save(tmp_path / "rows.npy", np.array([1]))
    assert load_rows(tmp_path / "rows.npy", 2).tolist() == [1]


def test_pickles_are_never_loaded(tmp_path):
    path = tmp_path / "evil.npy"
    path.write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(ValueError, match="cannot be read"):
        load_embeddings(path)


def test_names_with_escape_codes_are_shown_escaped(table, tmp_path, monkeypatch, capsys):
    folder, _, _ = table
    name = tmp_path / "\x1b[31m[red]points.npy"
    name.write_bytes((folder / "points.npy").read_bytes())
    shown = run(name, "--labels", folder / "labels.txt", "--bootstrap", 0)
    assert r"\x1b[31m[red]points.npy" in "".join(shown.split())
    assert "\x1b[31m" not in shown
    assert r"\x1b[31mno.npy" in fails(monkeypatch, capsys, folder / "\x1b[31mno.npy", "--labels", "x.txt")


def test_images_are_to_be_embedded_first(tmp_path):
    pictures(tmp_path / "photos", "wren/1.jpg")
    (tmp_path / "list.csv").write_text("path,label\nphotos/wren/1.jpg,wren\n")
    for place in ("photos", "list.csv"):
        answer = CliRunner().invoke(cli.app, ["evaluate", str(tmp_path / place)])
        assert f"softwarp embed RUN {tmp_path / place} -o" in str(answer.exception)
