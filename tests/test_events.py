"""Events: what a listener hears, what is drawn, what is logged."""

import io
import logging

import pytest
from rich.console import Console
from rich.progress import Progress as Bars

from softwarp import events
from softwarp.events import Drawn, Note, Progress, Stopping, Work, bars, part_of, shown, tell


def silent_bars():
    output = io.StringIO()
    return Bars(console=Console(file=output, width=200)), output


def test_work_tells_how_far_it_has_got():
    heard = []
    work = Work(heard.append, "packing", total=3, done=1)
    work.advance()
    work.say("packing b.jpg")
    work.end()
    assert heard == [
        Progress("packing", 1, 3),
        Progress("packing", 2, 3),
        Progress("packing", 2, 3, "packing b.jpg"),
        Progress("packing", 2, 3, "packing b.jpg", ended=True),
    ]
    Work(None, "nobody listens").advance()


def test_a_note_that_nobody_hears_is_a_warning():
    heard = []
    tell(heard.append, "left out: a.jpg")
    assert heard == [Note("left out: a.jpg")]
    with pytest.warns(UserWarning, match=r"a\.jpg"):
        tell(None, "left out: a.jpg")


def test_what_a_part_began_ends_with_it_also_if_it_fails():
    heard = []
    whole = Work(heard.append, "all", total=2)

    def fail():
        with part_of(heard.append) as listener:
            Work(listener, "ended", total=1).end()
            Work(listener, "open", total=1)
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        fail()
    assert [event.work for event in heard if event.ended] == ["ended", "open"]
    assert not whole.done
    with part_of(None) as listener:
        assert listener is None


def test_bars_follow_the_work_and_go_with_it():
    drawn, output = silent_bars()
    draw = Drawn(drawn)
    draw(Progress("embedding", 5, 10))
    draw(Progress("embedding", 6, 10, "embedding [a]"))
    (task,) = drawn.tasks
    assert (task.completed, task.total, task.description) == (6, 10, "embedding [a]")
    assert task.speed is None or task.speed > 0
    draw(Note("skipped: [b].jpg"))
    draw(Progress("embedding", 6, 10, ended=True))
    assert not drawn.tasks
    assert output.getvalue() == "embedding [a]\nskipped: [b].jpg\n"


def test_without_a_terminal_notes_are_logged(monkeypatch, caplog):
    monkeypatch.delitem(events.sys.modules, "ipykernel", raising=False)
    with caplog.at_level(logging.INFO, "softwarp"), shown() as on_event:
        on_event(Note("batches: 8 classes"))
        on_event(Progress("warped_softmax", 1, 2))
        on_event(Progress("warped_softmax", 2, 2, "epoch 1, loss 0.5"))
        on_event(Stopping(1))
    assert [record.message for record in caplog.records][:2] == [
        "batches: 8 classes",
        "epoch 1, loss 0.5: 2 of 2",
    ]
    assert "Ctrl-C again" in caplog.records[2].message
    heard = []
    with shown(heard.append) as on_event:
        assert on_event == heard.append


def shown_line(done, *, width=80):
    """The lines of a bar at the end of an epoch, in a terminal of that width."""
    drawn = bars()
    drawn.add_task("warped_softmax, epoch 12, loss 12.345, map@r 0.4567", total=14400, completed=done)
    screen = Console(width=width, file=io.StringIO())
    screen.print(drawn.get_renderable())
    return screen.file.getvalue().splitlines()


def test_a_bar_fits_into_80_columns_with_all_its_figures():
    for done in (12000, 14400):
        (line,) = shown_line(done)
        assert "map@r 0.4567" in line
        assert f"{done}/14400" in line
        assert ":" in line.split()[-1]
        assert "…" not in line


def test_a_wide_terminal_shows_a_longer_bar():
    assert shown_line(12000, width=120)[0].count("━") > 20 > shown_line(12000)[0].count("━")
