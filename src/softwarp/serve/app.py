"""The web application around an index: a page, and the JSON API that it uses.

With an open index, `uvicorn.run(create_app(index))` serves it to this machine.
"""

from collections.abc import Callable
from importlib.metadata import version
from importlib.resources import files
from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, File, Form, HTTPException, Query, UploadFile
from starlette.responses import Response

from softwarp.data.decode import digest_of
from softwarp.files import printable
from softwarp.index.corrections import Corrections
from softwarp.index.index import Index
from softwarp.serve import answers, lookup
from softwarp.serve.embedding import UploadEmbedder, Workers
from softwarp.serve.guard import Guard
from softwarp.serve.labels import label_routes
from softwarp.serve.limits import Limits
from softwarp.serve.live import LiveIndex
from softwarp.serve.lookup import Id, Where
from softwarp.serve.openai import openai_routes
from softwarp.serve.overview import overview_routes
from softwarp.serve.refusals import add_refusals
from softwarp.serve.uploads import check_name

PAGES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/api": ("api.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/map.js": ("map.js", "text/javascript; charset=utf-8"),
    "/relabel.js": ("relabel.js", "text/javascript; charset=utf-8"),
    "/lists.js": ("lists.js", "text/javascript; charset=utf-8"),
    "/api.js": ("api.js", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": answers.Refusal, "description": text}
    for status, text in {
        400: "malformed",
        401: "without the token",
        403: "from another site",
        404: "unknown",
        408: "too slow",
        409: "the corrections cannot be read",
        413: "too large",
        415: "not an image",
        421: "another host",
        422: "out of range",
        503: "too busy",
        507: "a correction cannot be written",
    }.items()
}
KEPT = {"cache-control": "private, max-age=604800, immutable"}  # an id is never used again


def create_app(index: Index, *, token: str | None = None, limits: Limits | None = None) -> FastAPI:
    """Return the application that serves an index.

    Args:
        token: what visitors have to know; without one, only requests for localhost are answered.
    """
    limits = limits or Limits()
    live, corrections = LiveIndex(index), Corrections(index.folder)
    app = FastAPI(
        title="softwarp",
        version=version("softwarp"),
        summary=f"Search in {printable(index.folder.resolve().name)}",
        docs_url=None,  # FastAPI's pages load scripts from elsewhere; /api is ours
        redoc_url=None,
        responses=REFUSALS,
    )
    app.add_middleware(Guard, token=token, limits=limits)
    add_refusals(app)
    _add_pages(app)
    workers = Workers()
    embedder = UploadEmbedder(live, workers, limits)

    @app.get("/healthz")
    def healthz() -> answers.Health:
        """Whether the server answers and the index can be read; needs no token."""
        return answers.Health(status="ok", images=len(live.now()))

    app.include_router(_image_routes(live, workers, embedder, limits))
    app.include_router(overview_routes(live, corrections))
    app.include_router(label_routes(live, corrections))
    app.include_router(openai_routes(live, embedder, limits))
    return app


def _image_routes(live: LiveIndex, workers: Workers, embedder: UploadEmbedder, limits: Limits) -> APIRouter:
    routes, work = APIRouter(prefix="/api"), workers.run
    Number = Annotated[int, Query(ge=1, le=limits.results, description="Number of images.")]
    Within = Annotated[
        float | None, Query(ge=0, allow_inf_nan=False, description="Only images at most so far away.")
    ]

    @routes.get("/index")
    def about() -> answers.About:
        """What is served: images, classes, distance, limits."""
        return lookup.about_index(live.now(), limits)

    @routes.post("/search")
    async def search(
        image: Annotated[UploadFile, File(description="An image file.")],
        where: Where,
        k: Number = 24,
        within: Within = None,
        box: Annotated[
            str, Form(max_length=50, description="Only this part: x,y,width,height in pixels.")
        ] = "",
    ) -> answers.Found:
        """The images that are most like an uploaded one."""
        check_name(image.filename)
        if not live.now().model_name:
            raise HTTPException(400, "the index has no model; search with one of its images")
        content = await image.read()
        vector = await embedder.embed(content, box or None)
        digest = digest_of(content).hex()
        return await work(
            lambda: lookup.find_nearest(live.now(), vector, k, where, digest=digest, within=within)
        )

    @routes.get("/images")
    async def images(where: Where, count: Number = 24) -> answers.Sample:
        """Some of the images that match a filter, spread evenly over them."""

        def choose() -> answers.Sample:
            index = live.now()
            ids = lookup.matching(index, where)
            chosen = sorted({ids[place * len(ids) // count] for place in range(count)}) if ids else []
            images = [lookup.picture(item) for item in lookup.images_of(index, chosen)]
            return answers.Sample(total=len(ids), images=images)

        return await work(choose)

    @routes.get("/ids")
    async def ids(where: Where) -> answers.Ids:
        """The ids of all images that match a filter."""
        return await work(lambda: answers.Ids(ids=lookup.matching(live.now(), where)))

    @routes.get("/images/{number}")
    def image(number: Id) -> answers.ShownImage:
        """Path and class of an image."""
        return lookup.picture(lookup.image_of(live.now(), number))

    @routes.get("/images/{number}/neighbours")
    async def neighbours(number: Id, where: Where, k: Number = 24, within: Within = None) -> answers.Found:
        """The images that are most like one of the index; that one itself is left out."""

        def search() -> answers.Found:
            index = live.now()
            vector, digest = lookup.vector_of(index, number), lookup.image_of(index, number).digest
            return lookup.find_nearest(index, vector, k, where, digest=digest, within=within, but=number)

        return await work(search)

    @routes.get("/images/{number}/thumbnail", response_class=answers.Jpeg)
    def thumbnail(number: Id) -> Response:
        """An image in at most 160 pixels a side."""
        try:
            return answers.Jpeg(live.now().thumbnail(number), headers=KEPT)
        except ValueError:
            raise HTTPException(404, f"no image has the id {number}, or it has no thumbnail") from None

    @routes.get("/images/{number}/picture", response_class=answers.Jpeg)
    async def picture(number: Id) -> Response:
        """An image in at most 1280 pixels a side, from its file."""
        jpeg = await work(lambda: lookup.large_jpeg(live.now(), number, limits))
        return answers.Jpeg(jpeg, headers=KEPT)

    @routes.post("/csv", response_class=answers.Csv)
    async def csv(selection: answers.Selection) -> Response:
        """Id, path and class of chosen images as a CSV file."""
        content = await work(lambda: lookup.csv_of(live.now(), selection.ids))
        return answers.Csv(content, headers={"content-disposition": 'attachment; filename="selection.csv"'})

    return routes


def _add_pages(app: FastAPI) -> None:
    """Answer each address of the page with its file: no path is ever made of an address."""
    folder = files("softwarp.serve") / "page"
    for address, (name, kind) in PAGES.items():
        app.add_api_route(address, _page((folder / name).read_bytes(), kind), include_in_schema=False)


def _page(content: bytes, kind: str) -> Callable[[], Response]:
    def answer() -> Response:
        return Response(content, media_type=kind, headers={"cache-control": "no-cache"})

    return answer
