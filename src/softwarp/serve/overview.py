"""The map, near-duplicates and outliers of a whole collection, made at the first request for them."""

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Path, Query
from starlette.responses import Response

from softwarp.events import OnEvent, Progress
from softwarp.files import printable
from softwarp.index.corrections import Corrections
from softwarp.index.index import Index
from softwarp.serve import answers, labels, lookup
from softwarp.serve.live import BackgroundWork, LiveIndex
from softwarp.serve.map_file import MapFile, open_map

SHOWN = 100  # entries of a list in one answer
Start = Annotated[int, Query(ge=0, le=answers.LARGEST_ID, description="How many to pass over.")]


class WorkByName:
    """Work on the whole index by name, done once and again when the index has changed."""

    def __init__(self, live: LiveIndex) -> None:
        self._live, self._lock = live, threading.Lock()
        self._jobs: dict[str, tuple[Index, BackgroundWork]] = {}

    def of(self, name: str, work: Callable[[Index, OnEvent], Any]) -> tuple[Index, BackgroundWork]:
        """Return the work of that name, which is started if need be, and the index it is about."""
        with self._lock:
            index = self._live.now()
            about, job = self._jobs.get(name, (None, None))
            if about is None or job is None or (about is not index and not job.working):
                self._jobs[name] = index, BackgroundWork(lambda on_event: work(index, on_event))
            return self._jobs[name]


def overview_routes(live: LiveIndex, corrections: Corrections) -> APIRouter:
    """Return the routes under /api for the map, duplicates and outliers of an index."""
    routes = APIRouter(prefix="/api")
    jobs = WorkByName(live)

    @routes.get("/map")
    def status() -> answers.MapStatus:
        """How far the map has come. The first request starts it; it is kept beside the index."""
        _, job = jobs.of("map", make_map)
        return answers.MapStatus(**job.status(), **(job.result.about if job.result else {}))

    def ready() -> MapFile:
        result = jobs.of("map", make_map)[1].result
        if not isinstance(result, MapFile):
            raise HTTPException(404, "the map is not ready; ask /api/map")
        return result

    @routes.get("/map/points", response_class=answers.Bytes)
    def points() -> Response:
        """Records of 20 bytes, little-endian: x, y (float32), id, class (uint32), red, green, blue, 0.

        Places are in the unit square. Classes are numbers in the list of /api/map, 2^32 - 1 for none.
        """
        return answers.Bytes(ready().part("points"))

    @routes.get("/map/atlases/{number}", response_class=answers.Jpeg)
    def atlas(
        number: Annotated[int, Path(ge=0, le=10**6, description="Which one, from 0.")],
        version: Annotated[str, Query(description="Of the map; the answer may then be kept.")] = "",
    ) -> Response:
        """Thumbnails of points: of the first 32 x 32 in atlas 0, row by row, and so on."""
        try:
            kept = {"cache-control": "private, max-age=604800"} if version else None
            return answers.Jpeg(ready().part(f"atlas-{number}"), headers=kept)
        except ValueError:
            raise HTTPException(404, f"the map has no atlas {number}") from None

    @routes.get("/duplicates")
    def duplicates(start: Start = 0) -> answers.DuplicateList:
        """Groups of near-duplicates, the surest first, a hundred at a time."""
        index, job = jobs.of("duplicates", lambda index, on_event: index.duplicates(on_event=on_event))
        status = job.status()  # first: what ends after it is not ready yet
        groups = job.result.groups if job.result else ()
        page = groups[start : start + SHOWN]
        items = index.store.find(number for group in page for number in group.ids)
        pairs = (zip(group.ids, group.distances, strict=True) for group in page)
        shown = [answers.DuplicateGroup(images=lookup.shown_results(items, each)) for each in pairs]
        return answers.DuplicateList(**status, groups=shown, count=len(groups))

    @routes.get("/outliers")
    def outliers(start: Start = 0) -> answers.OutlierList:
        """Images whose neighbours are of another class, the surest first, a hundred at a time."""
        index, job = jobs.of("outliers", lambda index, on_event: index.outliers(on_event=on_event))
        status = job.status()
        found = job.result.rows if job.result else ()
        corrected, page = labels.read(corrections), found[start : start + SHOWN]
        items = index.store.find(row.id for row in page)
        shown = [
            answers.ShownOutlier(
                **dict(lookup.picture(items[row.id])),
                corrected=printable(corrected[row.path]) if row.path in corrected else None,
                suggested=printable(row.suggested),
                score=row.score,
            )
            for row in page
            if row.id in items
        ]
        return answers.OutlierList(**status, images=shown, count=len(found))

    return routes


def make_map(index: Index, on_event: OnEvent) -> MapFile:
    """Return the map of an index; made, if there is none, by another process: it would hold up requests."""
    found = open_map(index.store)
    if found is not None:
        return found
    words = [sys.executable, "-m", "softwarp.serve.map_file", str(index.folder)]
    last = ""
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as maker:
        assert maker.stdout is not None
        for line in maker.stdout:
            if line.startswith("["):
                on_event(Progress(*json.loads(line)))
            else:  # a traceback, of which the last line says the cause
                last = line.strip() or last
    found = open_map(index.store)
    if found is None:
        raise ValueError(last or "the index has changed meanwhile; ask again")
    return found
