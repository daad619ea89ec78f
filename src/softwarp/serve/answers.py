"""What the API answers, as its OpenAPI description shows it."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

LONGEST_CLASS = 200  # letters of a new class
LARGEST_ID = 2**53  # beyond it, JavaScript's numbers are no longer whole


class Refusal(BaseModel):
    """The reason why a request is not served."""

    detail: str = Field(description="The cause, in words.")


class Health(BaseModel):
    """A sign that the server is well."""

    status: Literal["ok"] = Field(description="Anything else is a refusal.")
    images: int = Field(description="How many images there are.")


class ShownImage(BaseModel):
    """An image of the index. Letters of names that cannot be printed are escaped."""

    model_config = ConfigDict(populate_by_name=True)

    id: int = Field(description="Stays with the image as long as its content does, and is never used again.")
    path: str = Field(description="Relative to the folder that was indexed.")
    label: str | None = Field(alias="class", description="The name of its class; null if it has none.")


class ShownNeighbour(ShownImage):
    """An image and how far away it is."""

    distance: float = Field(description="In the distance of the index: 0 is the same.")


class ShownResult(ShownNeighbour):
    """An image that was found."""

    same_file: bool = Field(description="Whether its file is the query's, byte by byte; then it has no vote.")


class Votes(BaseModel):
    """How many of the neighbours are of a class, and how near the nearest of them is."""

    model_config = ConfigDict(populate_by_name=True)

    label: str = Field(alias="class", description="The name of the class.")
    count: int = Field(description="How many of the results are of it.")
    nearest: float = Field(description="The distance of the nearest of them.")


class Found(BaseModel):
    """The nearest images and their classes."""

    distance: str = Field(description="How images are compared: euclidean, or cosine (1 - cos).")
    nearest: float | None = Field(
        description="The distance of the nearest image that the filters let through, whatever `within` says; "
        "null if there is none."
    )
    results: list[ShownResult] = Field(description="The images found, nearest first.")
    votes: list[Votes] = Field(description="The classes of the results, the most frequent first.")


class ClassCount(BaseModel):
    """A class of the index."""

    name: str = Field(description="As the parameter class takes it.")
    count: int = Field(description="How many images it has.")


class About(BaseModel):
    """What is served."""

    name: str = Field(description="The name of the index's folder.")
    images: int = Field(description="How many images there are.")
    classes: list[ClassCount] = Field(description="All classes, sorted by name.")
    distance: str = Field(description="How images are compared: euclidean, or cosine (1 - cos).")
    dimensions: int = Field(description="How many numbers a vector has.")
    model: str = Field(description="The run or pretrained model that the vectors come from; may be empty.")
    uploads: bool = Field(description="Whether there is a model, so that new images can be searched with.")
    upload_bytes: int = Field(description="The largest request, in bytes.")
    pixels: int = Field(description="The largest image, in pixels.")
    results: int = Field(description="The largest number of images per answer.")


class Sample(BaseModel):
    """Some of the images that match a filter."""

    total: int = Field(description="How many match.")
    images: list[ShownImage] = Field(description="Spread evenly over them.")


class Ids(BaseModel):
    """Images by their ids."""

    ids: list[int] = Field(description="The ids, ascending.")


class Selection(BaseModel):
    """Images that somebody has chosen."""

    ids: list[Annotated[int, Field(ge=0, le=LARGEST_ID)]] = Field(
        max_length=100_000, description="In the order of the file's rows."
    )


class Status(BaseModel):
    """How far a long job has come."""

    state: Literal["working", "ready", "failed"] = Field(description="Ask again while it is working.")
    what: str = Field(description="What is being done, or why it failed.")
    done: int = Field(description="How much of it is done.")
    total: int = Field(description="Out of how much; 0 if that is not known yet.")


class MapStatus(Status):
    """How far the map has come; what describes it is empty until it is ready."""

    method: str = Field("", description="How places were found: umap or pca.")
    images: int = Field(0, description="How many are on the map.")
    of: int = Field(0, description="How many the index has.")
    classes: list[str] = Field([], description="Names of classes; points have numbers in this list.")
    tile: int = Field(0, description="Pixels per side of a thumbnail in an atlas.")
    columns: int = Field(0, description="Thumbnails per row, and rows, of an atlas.")
    version: str = Field("", description="Changes when the map does.")


class DuplicateGroup(BaseModel):
    """Images that are nearly the same."""

    images: list[ShownNeighbour] = Field(description="Each with its distance to the first.")


class DuplicateList(Status):
    """How far the search for near-duplicates has come, and what it has found."""

    groups: list[DuplicateGroup] = Field([], description="At most a hundred, the surest first.")
    count: int = Field(0, description="How many groups there are in all.")


class NewLabel(BaseModel):
    """The class that an image should have."""

    model_config = ConfigDict(populate_by_name=True)

    name: str = Field(
        alias="class", min_length=1, max_length=LONGEST_CLASS, description="One of the index, or a new one."
    )


class Corrected(ShownImage):
    """An image of the index, and the class that somebody has given it."""

    corrected: str | None = Field(description="Not yet in the index; null if there is no correction.")


class CorrectionList(BaseModel):
    """Corrections that are not in the index yet."""

    count: int = Field(description="How many there are.")
    file: str = Field(description="The name of the CSV file beside the index, with path and label.")
    command: str = Field(description="What applies them, in the folder of the index.")


class ShownOutlier(Corrected):
    """An image whose neighbours are of another class."""

    suggested: str = Field(description="The class that most of its neighbours vote for.")
    score: float = Field(description="The share of votes for that class minus that for its own, at most 1.")


class OutlierList(Status):
    """How far the search for outliers has come, and what it has found."""

    images: list[ShownOutlier] = Field([], description="At most a hundred, the surest first.")
    count: int = Field(0, description="How many there are in all.")


class OpenAIEmbedding(BaseModel):
    """The embedding of an image."""

    object: Literal["embedding"] = Field("embedding", description="Always this word.")
    index: int = Field(description="The place of the image in the request, from 0.")
    embedding: list[float] | str = Field(description="Numbers, or little-endian float32 in base64.")


class OpenAIUsage(BaseModel):
    """What a request is charged for: nothing, images have no tokens."""

    prompt_tokens: int = Field(0, description="Always 0.")
    total_tokens: int = Field(0, description="Always 0.")


class OpenAIEmbeddings(BaseModel):
    """Embeddings in the order of the request."""

    object: Literal["list"] = Field("list", description="Always this word.")
    data: list[OpenAIEmbedding] = Field(description="One per image.")
    model: str = Field(description="The model that made them.")
    usage: OpenAIUsage = Field(OpenAIUsage(), description="Tokens, which images have none of.")


class OpenAIModel(BaseModel):
    """A model that embeds images."""

    id: str = Field(description="Its name.")
    object: Literal["model"] = Field("model", description="Always this word.")
    created: int = Field(0, description="Always 0: the time is not known.")
    owned_by: str = Field("softwarp", description="Always this word.")


class OpenAIModels(BaseModel):
    """The models that embed images: that of the index, or none."""

    object: Literal["list"] = Field("list", description="Always this word.")
    data: list[OpenAIModel] = Field(description="At most one.")


class OpenAIError(BaseModel):
    """What is wrong with a request."""

    message: str = Field(description="The cause, in words.")
    type: str = Field(description="invalid_request_error, or server_error.")
    param: str | None = Field(description="Always null: the message names it.")
    code: str | None = Field(description="invalid_api_key without the token, otherwise null.")


class OpenAIRefusal(BaseModel):
    """The reason why a request is not served, as OpenAI's API tells it."""

    error: OpenAIError = Field(description="What is wrong.")


class Jpeg(Response):
    media_type = "image/jpeg"


class Csv(Response):
    media_type = "text/csv"


class Bytes(Response):
    media_type = "application/octet-stream"
