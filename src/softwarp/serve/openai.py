"""Embeddings of images as OpenAI's API gives those of texts, for programs that speak it already."""

import asyncio
import base64
import binascii
import re
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, HTTPException, Path
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from softwarp.files import printable
from softwarp.index.index import Index
from softwarp.index.searching import as_stored
from softwarp.serve import answers
from softwarp.serve.embedding import UploadEmbedder
from softwarp.serve.limits import Limits
from softwarp.serve.live import LiveIndex
from softwarp.serve.lookup import LONGEST, model_name

DATA_URL = re.compile(r"data:[^,]{0,200};base64,", re.IGNORECASE)
SHOWN_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": answers.OpenAIRefusal, "description": text}
    for status, text in {
        400: "malformed, or not an image",
        401: "without the token",
        404: "another model",
        413: "too large",
        415: "not an image of a known kind",
        503: "too busy",
    }.items()
}


class EmbeddingRequest(BaseModel):
    """Images whose embeddings are wanted."""

    model_config = ConfigDict(extra="forbid")

    input: str | list[str] = Field(description="An image file in base64 or as a data URL, or several.")
    model: str | None = Field(None, description="The one that /v1/models names; no other is there.")
    encoding_format: Literal["float", "base64"] = Field(
        "float", description="base64: little-endian float32, in base64."
    )
    dimensions: int | None = Field(None, description="Those of the model; it makes no others.")
    user: str | None = Field(None, description="Not read.")


def openai_routes(live: LiveIndex, embedder: UploadEmbedder, limits: Limits) -> APIRouter:
    """Return the routes under /v1 by which OpenAI's clients get embeddings of images."""
    routes = APIRouter(prefix="/v1", responses=SHOWN_ERRORS)

    @routes.post("/embeddings")
    async def embeddings(request: EmbeddingRequest) -> answers.OpenAIEmbeddings:
        """Embeddings of images, as the index holds them: of unit length where its distance is cosine."""
        index = live.now()
        _check(request, index)
        given = [request.input] if isinstance(request.input, str) else request.input
        if not 1 <= len(given) <= limits.inputs:
            raise HTTPException(400, f"input: a request may have 1 to {limits.inputs} images")
        vectors = list[NDArray[np.float32]]()
        for start in range(0, len(given), limits.batch):  # between two batches it is others' turn
            part = [(place, given[place]) for place in range(start, min(start + limits.batch, len(given)))]
            vectors += await asyncio.gather(*(_embed(embedder, *each) for each in part))
        stored = as_stored(index.store, np.stack(vectors))
        encode = _as_base64 if request.encoding_format == "base64" else _as_numbers
        data = [
            answers.OpenAIEmbedding(index=place, embedding=encode(vector))
            for place, vector in enumerate(stored)
        ]
        return answers.OpenAIEmbeddings(data=data, model=model_name(index))

    @routes.get("/models")
    def models() -> answers.OpenAIModels:
        """The model of the index, by the name that /v1/embeddings takes."""
        index = live.now()
        found = [answers.OpenAIModel(id=model_name(index))] if index.model_name else []
        return answers.OpenAIModels(data=found)

    @routes.get("/models/{name:path}")
    def model(
        name: Annotated[str, Path(max_length=LONGEST, description="The name of a model.")],
    ) -> answers.OpenAIModel:
        """A model by its name."""
        _check_name(name, live.now())
        return answers.OpenAIModel(id=name)

    return routes


def _check(request: EmbeddingRequest, index: Index) -> None:
    if not index.model_name:
        raise HTTPException(400, "the index has no model, so no image can be embedded")
    if request.model is not None:
        _check_name(request.model, index)
    if request.dimensions not in (None, index.dimensions):
        raise HTTPException(400, f"dimensions: this model's embeddings have {index.dimensions}; omit it")


def _check_name(name: str, index: Index) -> None:
    if not index.model_name or name != model_name(index):
        named = f"this server has {model_name(index)!r}" if index.model_name else "the index has no model"
        raise HTTPException(404, f"model: none is called {printable(name)!r}; {named}")


async def _embed(embedder: UploadEmbedder, place: int, text: str) -> NDArray[np.float32]:
    try:
        return await embedder.embed(_decoded(text))
    except HTTPException as error:
        raise HTTPException(error.status_code, f"input {place}: {error.detail}") from None


def _decoded(text: str) -> bytes:
    """The bytes of a file; line breaks, which some programs put into base64, are no matter."""
    url = DATA_URL.match(text)
    try:
        return base64.b64decode("".join(text[url.end() if url else 0 :].split()), validate=True)
    except (binascii.Error, ValueError):
        raise HTTPException(
            400, "give the image file in base64, plain or as data:image/png;base64,..."
        ) from None


def _as_numbers(vector: NDArray[np.float32]) -> list[float] | str:
    return [float(value) for value in vector]


def _as_base64(vector: NDArray[np.float32]) -> list[float] | str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()
