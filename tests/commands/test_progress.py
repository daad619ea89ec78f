"""Progress bars as a terminal shows them."""

import io

from rich.console import Console

from softwarp.commands.progress import progress_bars


def shown(done, *, width=80):
    """The lines of a bar at the end of an epoch, in a terminal of that width."""
    bars = progress_bars()
    bars.add_task("warped_softmax, epoch 12, loss 12.345, map@r 0.4567", total=14400, completed=done)
    screen = Console(width=width, file=io.StringIO())
    screen.print(bars.get_renderable())
    return screen.file.getvalue().splitlines()


def test_a_bar_fits_into_80_columns_with_all_its_figures():
    for done in (12000, 14400):
        (line,) = shown(done)
        assert "map@r 0.4567" in line
        assert f"{done}/14400" in line
        assert ":" in line.split()[-1]
        assert "…" not in line


def test_a_wide_terminal_shows_a_longer_bar():
    assert shown(12000, width=120)[0].count("━") > 20 > shown(12000)[0].count("━")
