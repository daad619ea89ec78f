"""What the API answers, as its OpenAPI description shows it."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

LARGEST_ID = 2**53  # beyond it, JavaScript's numbers are no longer whole


class Refusal(BaseModel):
    """Why a request is not served."""

    detail: str


class Picture(BaseModel):
    """An image of the index. Letters of names that cannot be printed are escaped."""

    model_config = ConfigDict(populate_by_name=True)

    id: int
    path: str
    label: str | None = Field(alias="class")


class Neighbour(Picture):
    distance: float


class Votes(BaseModel):
    """How many of the neighbours are of a class, and how near the nearest of them is."""

    model_config = ConfigDict(populate_by_name=True)

    label: str = Field(alias="class")
    count: int
    nearest: float


class Found(BaseModel):
    """The nearest images, nearest first, and their classes, the most frequent first."""

    distance: str
    results: list[Neighbour]
    votes: list[Votes]


class ClassCount(BaseModel):
    name: str
    count: int


class About(BaseModel):
    """What is served."""

    name: str
    images: int
    classes: list[ClassCount]
    distance: str
    dimensions: int
    model: str
    uploads: bool  # whether there is a model that embeds them
    upload_bytes: int
    pixels: int
    results: int


class Sample(BaseModel):
    """Some of the images that match a filter, spread evenly, and how many match."""

    total: int
    images: list[Picture]


class Ids(BaseModel):
    ids: list[int]


class Selection(BaseModel):
    ids: list[Annotated[int, Field(ge=0, le=LARGEST_ID)]] = Field(max_length=100_000)


class Status(BaseModel):
    """How far long work is: what is being done, how much of it, out of how much; or why it failed."""

    state: Literal["working", "ready", "failed"]
    what: str
    done: int
    total: int


class MapStatus(Status):
    """The map, once it is ready: how it was made, of how many images, and how its atlases are laid out."""

    method: str = ""
    images: int = 0
    of: int = 0
    classes: list[str] = []
    tile: int = 0
    columns: int = 0
    version: str = ""


class DuplicateGroup(BaseModel):
    """Images that are nearly the same, each with its distance to the first."""

    images: list[Neighbour]


class DuplicateList(Status):
    groups: list[DuplicateGroup] = []
    count: int = 0


class Outlier(Picture):
    """An image whose neighbours are of another class."""

    suggested: str
    score: float


class OutlierList(Status):
    images: list[Outlier] = []
    count: int = 0


class Jpeg(Response):
    media_type = "image/jpeg"


class Csv(Response):
    media_type = "text/csv"


class Bytes(Response):
    media_type = "application/octet-stream"
