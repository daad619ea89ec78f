"""What training tells while it runs."""

from collections.abc import Callable
from itertools import groupby

from softwarp import processes
from softwarp.events import OnEvent, Work, tell
from softwarp.losses.own_file import loss_label
from softwarp.models.backbones import BACKBONES
from softwarp.models.hub import address_to_fetch
from softwarp.models.weights_folder import find_added
from softwarp.recipe.schema import Recipe
from softwarp.training.job import Job
from softwarp.training.schedule import stretches


def tell_download(recipe: Recipe, on_event: OnEvent | None) -> None:
    """Tell where weights are fetched from, if they are."""
    name = recipe.model.backbone
    if on_event is None or recipe.model.pretrained is not True or name in BACKBONES or find_added(name):
        return
    if address := address_to_fetch(name):
        tell(on_event, f"fetching the weights of {name} from {address}")


def follow(job: Job, on_event: OnEvent | None) -> Callable[[], None]:
    """Return a function to call after each step; progress counts images.

    Steps with a frozen backbone are several times faster, and the time left is estimated from the speed so
    far: a run that has both kinds is one piece of work per stretch.
    """
    if on_event is None or not processes.is_main():
        return lambda: None
    state, size, steps = job.state, job.batch_size, len(job.batches)
    mixed = len({phase.freeze_backbone for phase in job.recipe.phases}) > 1
    ends: list[tuple[int, int, str]] = []  # first step, last step plus one, name
    for frozen, same in groupby(stretches(job.recipe.phases, steps), lambda each: each[1].freeze_backbone):
        stretch = list(same)
        kind = ("head: " if frozen else "all: ") if mixed else ""
        ends.append((stretch[0][2], stretch[-1][3], kind))
    if state.step:
        epoch, step = divmod(state.step, steps)
        tell(on_event, f"resuming after {epoch} epochs and {step} batches")
    begun: dict[str, Work] = {}

    def present(before: int) -> tuple[Work, int, str]:
        """The work that the last step belongs to, how many images of it are done, and its kind."""
        first, last, kind = next(each for each in ends if state.step <= each[1])
        if kind not in begun:
            name, total = kind + loss_label(job.recipe.loss.name), (last - first) * size
            begun[kind] = Work(on_event, name, total=total, done=(before - first) * size)
        return begun[kind], (state.step - first) * size, kind

    def step_done() -> None:
        work, done, _ = present(state.step - 1)
        work.reach(done)

    def say(text: str) -> None:
        work, _, kind = present(state.step)
        work.say(kind + text)

    if any(last > state.step for _, last, _ in ends):
        present(state.step)
    job.tell = say
    return step_done
