import io
import re

from rich.console import Console

from softwarp.tables import Cell, Row, Table, figure, from_markdown, metric_table, metric_title

ROWS = [
    Row(("a",), {"recall@1": 0.5, "avg_dtp": 9.0}, {"recall@1": 0.01, "avg_dtp": 0.5}),
    Row(("b|<i>",), {"recall@1": 0.25, "avg_dtp": 3.0}),
    Row(("untrained",), {"recall@1": 0.75}, ranked=False),
]
TABLE = metric_table(ROWS, ("recall@1", "avg_dtp"), ("run",), title="T")


def test_the_best_is_bold_among_what_is_ranked_and_avg_dtp_never():
    assert [[cell.best for cell in row] for row in TABLE.rows] == [
        [False, True, False],
        [False, False, False],
        [False, False, False],
    ]
    assert TABLE.rows[0][1].text == "50.0 ± 1.0"
    assert TABLE.rows[2][2].text == ""


def test_one_row_alone_is_not_the_best():
    assert not any(cell.best for cell in metric_table(ROWS[:1], ("recall@1",), ("run",)).rows[0])


def test_markdown():
    assert TABLE.markdown().splitlines()[:3] == [
        "| run | Recall@1 | AvgDTP |",
        "| --- | ---: | ---: |",
        "| a | **50.0 ± 1.0** | 9.00 ± 0.50 |",
    ]


def test_html_is_escaped_and_marks_the_best():
    html = TABLE.html()
    assert '<td class="best">50.0 ± 1.0</td>' in html
    assert "<i>" not in html
    assert "&lt;i&gt;" in html


def test_the_terminal_shows_words_as_they_are():
    console = Console(width=60, record=True, file=io.StringIO())
    console.print(Table(("run",), ((Cell("[bold]x[/bold]"),),)).terminal())
    assert "[bold]x[/bold]" in console.export_text()


def test_figures():
    assert figure("queries_without_positives", 3.0) == "3"
    assert figure("map@r", 0.12345) == "12.3"
    assert metric_title("queries_without_positives") == "Queries without positives"


def test_a_narrow_terminal_shows_every_figure_beside_its_row():
    heads = ("loss", *(f"figure {number}" for number in range(9)))
    rows = tuple(
        (Cell(name), *(Cell(f"{name[0]}{number}") for number in range(9))) for name in ("warp", "hist")
    )
    out = io.StringIO()
    Console(file=out, width=60).print(Table(heads, rows, title="narrow").terminal())
    lines = out.getvalue().splitlines()
    for name in ("warp", "hist"):
        shown = [line for line in lines if f" {name} " in line]
        assert len(shown) > 1
        assert [cell for line in shown for cell in line.replace("│", " ").split() if cell != name] == [
            f"{name[0]}{number}" for number in range(9)
        ]
    assert max(map(len, lines)) <= 60
    assert out.getvalue().count("narrow") == 1


def test_names_do_not_reach_the_terminal_raw():
    out = io.StringIO()
    table = metric_table([Row(("\x1b[2Jrun [red]",), {"recall@1": 0.5})], ("recall@1",), ("run",))
    Console(file=out, width=80).print(table.terminal())
    assert r"\x1b[2Jrun [red]" in out.getvalue()
    assert "\x1b" not in out.getvalue()


GROUPED = Table(
    ("loss", "MAP@R", "P@1", "MAP@R"),
    (
        (Cell("a_b & 5%"), Cell("2.0 ± 0.1", best=True), Cell("3", second=True), Cell("−1")),
        (Cell(r"c\d{}"), Cell("1", second=True), Cell("4", best=True), Cell("0")),
    ),
    groups=(("Complete", 2), ("Ensemble", 1)),
)


def test_latex_escapes_and_marks_best_and_second():
    assert GROUPED.latex().splitlines() == [
        r"\begin{tabular}{l | cc | c}",
        r"\hline",
        r" & \multicolumn{2}{c}{Complete} & \multicolumn{1}{c}{Ensemble} \\",
        r"loss & MAP@R & P@1 & MAP@R \\",
        r"\hline",
        r"a\_b \& 5\% & \textbf{2.0 $\pm$ 0.1} & \underline{3} & $-$1 \\",
        r"c\textbackslash d\{\} & \underline{1} & \textbf{4} & 0 \\",
        r"\hline",
        r"\end{tabular}",
    ]
    assert r"\begin{tabular}{l | cc}" in TABLE.latex()


def test_the_terminal_shows_the_best_bold_and_the_second_underlined():
    out = io.StringIO()
    Console(file=out, width=120, force_terminal=True, color_system="truecolor").print(GROUPED.terminal())
    assert re.search(r"\x1b\[1m *2\.0 ± 0\.1\x1b\[0m", out.getvalue())
    assert re.search(r"\x1b\[4m *3\x1b\[0m", out.getvalue())


def test_groups_are_part_of_the_heads_where_cells_cannot_span():
    assert GROUPED.markdown().splitlines()[::2] == [
        "| loss | Complete MAP@R | Complete P@1 | Ensemble MAP@R |",
        "| a_b & 5% | **2.0 ± 0.1** | <ins>3</ins> | −1 |",
    ]
    assert '<td class="second">3</td>' in GROUPED.html()
    assert "<th>Ensemble MAP@R</th>" in GROUPED.html()


def test_a_bar_in_a_name_ends_no_cell():
    table = Table(("run | a", "x"), ((Cell("|t - 2|"), Cell("1|", best=True)), (Cell("a\nb|"), Cell(""))))
    lines = table.markdown().splitlines()
    assert lines[2] == r"| \|t - 2\| | **1\|** |"
    assert len(lines) == 4
    read = from_markdown(table.markdown())
    assert read.heads == table.heads
    assert [[cell.text for cell in row] for row in read.rows] == [["|t - 2|", "1|"], ["a b|", ""]]
    assert r"$|$t - 2$|$ & \textbf{1$|$}" in table.latex()
