"""The report of any runs and studies: its numbers, that it is whole, and that names do no harm."""

import json
import re
import shutil
from html.parser import HTMLParser

import pytest
import torch
from support.results import RECIPE, finished_run
from support.shown_runs import IMAGES, ODD, photographs, shown_run
from typer.testing import CliRunner

from softwarp.cli import app
from softwarp.files import write_text
from softwarp.recipe.overrides import dump_recipe
from softwarp.report.figures import curves, thumbnail_map
from softwarp.report.runs import read_entries
from softwarp.report.spaces import chosen_queries, confused_pairs
from softwarp.report.write import write_report
from softwarp.runs.repeats import summarise, write_repeats
from softwarp.studies import geometry, noise


class Page(HTMLParser):
    def __init__(self, path):
        super().__init__()
        self.images, self.links, self.tags, self.text = [], [], set(), path.read_text()
        self.feed(self.text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.tags.add(tag)
        if tag == "img":
            self.images.append(attributes)
        self.links += [attributes[key] for key in ("src", "href") if key in attributes]


@pytest.fixture
def birds(tmp_path):
    return photographs(tmp_path / "images", [f"bird{number}" for number in range(5)] + [ODD])


def made(tmp_path, *folders):
    write_report(tmp_path / "report.html", folders, "softwarp report <x>")
    return Page(tmp_path / "report.html")


def test_the_demo_s_report_is_this_report(demo):
    folder, runs = demo
    page = Page(folder / "report.html")
    assert all(link.startswith(("data:", "#")) for link in page.links)
    assert "script" not in page.tags
    for run in runs.values():
        assert f"{100 * run.result().metrics['map@r']:.1f}" in page.text
    answers = [image for image in page.images if image.get("class") in ("right", "wrong")]
    assert len(answers) == 8 * 3 * 10  # queries, runs, neighbours
    assert all(image["alt"].startswith(image["class"]) for image in answers)
    assert {image.get("class") for image in page.images} == {None, "right", "wrong", "lines", "photographs"}
    again = CliRunner().invoke(app, ["report", str(folder), "-o", str(folder / "again.html")])
    assert again.exit_code == 0, again.output
    body = page.text.partition("</nav>")[2]
    assert body == (folder / "again.html").read_text().partition("</nav>")[2]


def test_every_figure_has_its_file_and_its_numbers(demo):
    folder, runs = demo
    figures = folder / "report-figures"
    names = {path.stem for path in figures.glob("*.svg")}
    assert names == {path.stem for path in figures.glob("*.csv")}
    assert names == {"curve-loss", "curve-avg_dtp", *(f"map-{run.folder.name}" for run in runs.values())}
    assert len((figures / "curve-loss.csv").read_text().splitlines()) == 1 + 3 * 2
    assert (figures / "map-proxy_nca_pp.csv").read_text().startswith("class,file,x,y\n")


def test_names_do_no_harm(tmp_path, birds):
    shown_run(tmp_path / ODD.replace("/", ""), tmp_path / "images", birds)
    page = made(tmp_path, tmp_path / ODD.replace("/", ""))
    assert not page.tags & {"i", "script"}
    assert "<i>.jpg" not in page.text
    assert "&lt;b&gt;owl" in page.text
    assert "softwarp report &lt;x&gt;" in page.text
    assert not re.search(r"<b>owl", page.text)


def test_it_says_that_images_are_gone(tmp_path, birds):
    folder = shown_run(tmp_path / "run", tmp_path / "images", birds).folder
    assert "image not found" not in made(tmp_path, folder).text
    (tmp_path / "images" / birds[0].file).unlink()
    one = made(tmp_path, folder).text
    shutil.rmtree(tmp_path / "images")
    all_gone = made(tmp_path, folder)
    assert 0 < one.count("image not found") < all_gone.text.count("image not found")
    assert "not where the recipe says" in all_gone.text
    assert str(tmp_path) not in all_gone.text
    assert not [image for image in all_gone.images if "webp" in image["src"]]


def test_seeds_are_one_row_with_deviation(tmp_path, birds):
    results = []
    for seed, value in enumerate((0.2, 0.4)):
        metrics = {"recall@1": 0.5, "map@r": value}
        run = shown_run(
            tmp_path / "many" / f"seed-{seed}", tmp_path / "images", birds, seed=seed, metrics=metrics
        )
        results.append(run.result())
    write_repeats(tmp_path / "many", summarise(results))
    text = made(tmp_path, tmp_path / "many").text
    assert "30.0 ± 14.1" in text
    assert (tmp_path / "report-figures" / "curve-loss.csv").read_text().count("many,1,") == 2


def test_runs_on_other_images_are_not_in_one_table(tmp_path, birds):
    one = shown_run(tmp_path / "one", tmp_path / "images", birds).folder
    two = shown_run(tmp_path / "two", tmp_path / "images", birds, data_sha256="other").folder
    assert made(tmp_path, one, two).text.count(">Results on") == 4  # in the contents and as a heading
    assert (tmp_path / "report-figures" / "2-curve-loss.svg").is_file()


def test_a_run_without_embeddings_and_epochs_has_its_table(tmp_path, birds):
    run = shown_run(tmp_path / "run", tmp_path / "images", birds, history=False)
    run.drop_weights()
    text = made(tmp_path, run.folder).text
    assert "25.0" in text
    assert "No run has kept its embeddings" in text
    assert "Training</h3>" not in text


def test_a_run_that_was_not_trained_is_said_to_be_frozen(tmp_path, birds):
    frozen = shown_run(tmp_path / "frozen", tmp_path / "images", birds, epochs=0)
    trained = shown_run(tmp_path / "trained", tmp_path / "images", birds, epochs=2)
    assert (
        "Not trained, the features of the backbone as they are: frozen." in made(tmp_path, frozen.folder).text
    )
    assert "Not trained" not in made(tmp_path, trained.folder).text


def test_queries_find_images_of_the_gallery(tmp_path, birds):
    folder = shown_run(tmp_path / "run", tmp_path / "images", birds, gallery=True, spread=0.0).folder
    page = made(tmp_path, folder)
    answers = [image["class"] for image in page.images if image.get("class") in ("right", "wrong")]
    assert answers[:IMAGES] == ["right"] * IMAGES


def test_twenty_runs_stay_below_five_megabytes(tmp_path):
    """Photographs of noise, the hardest to compress."""
    items = photographs(tmp_path / "images", [f"class{number}" for number in range(30)], side=160)
    folders = [
        shown_run(tmp_path / f"run{n}", tmp_path / "images", items, seed=n, spread=1.0).folder
        for n in range(20)
    ]
    page = made(tmp_path, *folders)
    assert "Of 20 runs, the 4 best are shown" in page.text
    assert 5e5 < (tmp_path / "report.html").stat().st_size < 5e6


def test_a_study_s_folder_is_shown_and_cannot_run_scripts(tmp_path):
    folder = tmp_path / "study"
    folder.mkdir()
    claims = [{"claim": "a warp settles near alpha", "verdict": "held", "numbers": "10.6"}]
    about = {"study": "own", "paper": "Fig. 9", "command": "softwarp study own", "claims": claims}
    environment = {"python": "3", "system": "s", "device": "cpu", "threads": 1, "packages": {"torch": "2"}}
    (folder / "summary.json").write_text(json.dumps(about | {"environment": environment}))
    (folder / "table.md").write_text("| loss | MAP@R |\n| --- | ---: |\n| <i>hist</i> | **9.0** |\n")
    (folder / "figure.svg").write_text("<svg><script>alert(1)</script></svg>")
    page = made(tmp_path, folder)
    assert "script" not in page.tags
    assert '<td class="best">9.0</td>' in page.text
    assert "&lt;i&gt;hist" in page.text
    assert "settles near alpha" in page.text
    assert [image["class"] for image in page.images] == ["lines"]


def test_what_is_not_a_run_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="nothing is not a finished run"):
        made(tmp_path, tmp_path / "nothing")


def test_queries_are_best_median_and_worst_of_different_classes():
    values = torch.linspace(0, 1, 40)
    values[3] = torch.nan
    labels = torch.arange(40) // 2
    chosen = chosen_queries(values, labels)
    assert chosen["worst"] == [0, 2, 4, 6]
    assert chosen["best"] == [39, 37]
    assert [abs(query - 20) <= 2 for query in chosen["median"]] == [True, True]
    few = chosen_queries(torch.linspace(0, 1, 12), torch.arange(12) % 3)  # each kind has its classes
    assert {kind: len(queries) for kind, queries in few.items()} == {"best": 2, "median": 2, "worst": 3}
    assert len({query for queries in few.values() for query in queries}) == 7


def test_confused_pairs_count_both_directions():
    labels = torch.tensor([0, 0, 1, 2])
    neighbours = torch.tensor([[0, 1], [1, 2], [0, 2], [2, 2]])
    # 0 and 1: three of 2 x 3; 0 and 2: one of 2 x 3; 1 and 2: one of 2 x 2.
    assert confused_pairs(labels, neighbours) == [
        (0, 1, 0.5),
        (1, 2, 0.25),
        (0, 2, pytest.approx(1 / 6)),
    ]


def test_every_run_has_its_curve():
    rows = [{"epoch": 1, "loss": 2.0, "avg_dtp": 3.0}]
    drawn = [curves("", {title: [rows] for title in "abcdef"[:count]})[0].svg for count in (4, 5)]
    assert drawn[0] != drawn[1]


def test_alpha_and_validation_are_drawn_where_there_are_any():
    rows = [{"epoch": epoch, "loss": 2.0, "avg_dtp": 3.0} for epoch in (1, 2)]
    plain = curves("", {"one": [rows]})
    assert [each.name for each in plain] == ["loss", "avg_dtp"]
    more = [row | {"alpha": a, "validation": {"map@r": 0.5}} for row, a in zip(rows, (7, 3), strict=True)]
    drawn = curves("", {"one": [more]})
    assert [each.name for each in drawn] == ["loss", "avg_dtp", "map_at_r"]
    assert drawn[1].svg.count("stroke-dasharray") > plain[1].svg.count("stroke-dasharray")
    assert drawn[2].rows[0]["map@r"] == 50.0


def test_figures_are_the_same_for_the_same_numbers():
    rows = [{"epoch": 1, "loss": 2.0, "avg_dtp": 3.0}, {"epoch": 2, "loss": -1.0, "avg_dtp": None}]
    assert curves("", {"$a": [rows]}) == curves("", {"$a": [rows]})


def test_the_map_shows_the_widest_directions():
    points = torch.tensor([[9.0, 0.0, 0.0], [-9.0, 0.0, 0.1], [0.0, 4.0, 0.0], [0.0, -4.0, -0.1]])
    drawn = thumbnail_map("m", points, ["a", "a", "<", "<"], ["1", "2", "3", "4"], ["data:x", "", "", ""])
    assert [abs(round(row["x"])) for row in drawn.rows] == [9, 9, 0, 0]
    assert [abs(round(row["y"])) for row in drawn.rows] == [0, 0, 4, 4]
    assert drawn.caption == "100% of the variance"
    assert drawn.svg.count("<image") == 1
    assert drawn.svg.count("<circle") == 3
    assert "<title><" not in drawn.svg


def test_other_folds_are_other_classes(tmp_path):
    def entry(name, **evaluation):
        run = finished_run(tmp_path / name, split="validation")
        recipe = RECIPE.model_copy(update={"evaluation": RECIPE.evaluation.model_copy(update=evaluation)})
        write_text(run.folder / "recipe.yaml", dump_recipe(recipe))
        return read_entries([run.folder])[0].judged_on()

    assert entry("a", fold=0) != entry("b", fold=1)
    assert entry("c", folds=2) == entry("d", folds=4)
    assert entry("e", test_classes="second_half") != entry("f")


def test_a_run_that_judged_nothing_has_its_page_but_no_study(tmp_path):
    run = finished_run(tmp_path / "faces", metrics={"avg_dtp": 3.0})
    run.save_embeddings({"embeddings": torch.empty(0, 0), "labels": torch.empty(0)}, [])
    page = made(tmp_path, run.folder)
    assert "3.00" in page.text
    for study in (noise, geometry):
        with pytest.raises(ValueError, match=r"faces.*test_classes"):
            study.main([run.folder], output=tmp_path / "study", quick=True, on_event=None)
