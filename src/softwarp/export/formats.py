"""From a trained model to what others run: ONNX, torch.export, a Hugging Face folder, weights for timm.

Every graph reads bytes 0..255, resized and cropped, and normalises them itself: a caller who forgets to
normalise, or normalises twice, gets embeddings that look right and find the wrong neighbours.
"""

import copy
import io
import json
import logging
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from softwarp.export.model_card import model_card
from softwarp.files import atomic_write, write_json, write_text
from softwarp.models.pooling import POOLINGS
from softwarp.models.timm_backbone import TimmBackbone, create
from softwarp.runs.model_folder import CONFIG, WEIGHTS, ModelConfig
from softwarp.runs.run import Run

if TYPE_CHECKING:
    from huggingface_hub import HfApi

    from softwarp.inference import EmbeddingModel
    from softwarp.models.embedder import Embedder

INPUT, OUTPUT = "images", "embeddings"
LINEAR = ("MatMul", "Gemm")
Forward = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Quantised:
    """An int8 ONNX file, and how many layers of each kind it has."""

    content: bytes
    linear: int  # int8 now
    convolutions: int  # float32 as before


def describe(model: "EmbeddingModel") -> dict[str, Any]:
    """Return what a caller must know: how to prepare an image, and how to compare embeddings."""
    backbone = model.network.backbone
    colours = "RGB" if backbone.in_channels == 3 else "grey"
    return {
        "library_name": "softwarp",
        "distance": model.distance,
        "embedding_size": model.network.embedding_size,
        "input": f"uint8 [batch, {backbone.in_channels}, {model.crop}, {model.crop}], {colours}, 0..255; "
        "the network normalises",
        "channels": backbone.in_channels,
        "resize": model.resize,  # of the shorter side
        "crop": model.crop,  # at the centre
        "crop_mode": model.crop_mode,
        "interpolation": f"{model.interpolation}, antialiased",
        "mean": list(backbone.mean),
        "std": list(backbone.std),
        **({"pretrained_weights": model.pretrained_weights} if model.pretrained_weights else {}),
    }


def to_torch_export(model: "EmbeddingModel") -> bytes:
    """Return a .pt2 file with a dynamic batch; `softwarp.json` inside it holds what `describe` says."""
    file = io.BytesIO()
    with _quiet():
        torch.export.save(_traced(model), file, extra_files={"softwarp.json": json.dumps(describe(model))})
    return file.getvalue()


def run_torch_export(content: bytes) -> Forward:
    """Return the function that a .pt2 file holds."""
    with _quiet():
        forward: Forward = torch.export.load(io.BytesIO(content)).module()
    return forward


def to_onnx(model: "EmbeddingModel") -> bytes:
    """Return an ONNX file with a dynamic batch; its metadata hold what `describe` says, as strings."""
    _need_onnx()
    with _quiet():
        program = torch.onnx.export(
            _traced(model),
            dynamo=True,
            input_names=[INPUT],
            output_names=[OUTPUT],
            dynamic_shapes={INPUT: {0: torch.export.Dim("batch")}},  # here it only gives the name
            verbose=False,
        )
    assert program is not None
    graph = program.model_proto
    del graph.graph.value_info[:]  # quantisation transposes weights, and would trip over their old shapes
    for key, value in describe(model).items():
        graph.metadata_props.add(key=key, value=value if isinstance(value, str) else json.dumps(value))
    content: bytes = graph.SerializeToString()
    return content


def run_onnx(content: bytes, *, threads: int = 0) -> Forward:
    """Return the function that an ONNX file holds, run by onnxruntime on the CPU; 0 threads: one per core."""
    _need_onnx()
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return lambda images: torch.from_numpy(session.run([OUTPUT], {INPUT: images.numpy()})[0])


def quantise(content: bytes) -> Quantised:
    """Return an ONNX file whose linear layers have int8 weights and quantise their inputs as they come.

    Convolutions stay as they are. onnxruntime can quantise them too, but then EfficientNet-Lite0 is slower
    and its embeddings are of no use (docs/export.md): ranges that are found on the fly suit linear layers.
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    graph = onnx.load_from_string(content)
    with tempfile.TemporaryDirectory() as folder, _quiet():
        path = Path(folder) / "int8.onnx"
        quantize_dynamic(
            graph, path, op_types_to_quantize=LINEAR, per_channel=True, weight_type=QuantType.QInt8
        )
        small = path.read_bytes()
    kinds = [node.op_type for node in onnx.load_from_string(small).graph.node]
    if "MatMulInteger" not in kinds:
        raise ValueError("this model has no linear layer, and only those are quantised; leave out --quantise")
    return Quantised(small, linear=kinds.count("MatMulInteger"), convolutions=kinds.count("Conv"))


def to_timm(model: "EmbeddingModel") -> bytes:
    """Return a .safetensors file with the backbone alone, for `timm.create_model(name, num_classes=0)`."""
    name, backbone = timm_name(model), model.network.backbone
    assert isinstance(backbone, TimmBackbone)
    weights = {key: tensor.contiguous() for key, tensor in backbone.model.state_dict().items()}
    return save(weights, {key: str(value) for key, value in describe(model).items()} | {"timm": name})


def run_timm(content: bytes, model: "EmbeddingModel") -> Forward:
    """Return the embeddings of timm's own model with these weights, under the pooling and head of `model`."""
    network = copy.deepcopy(model.network)
    assert isinstance(network.backbone, TimmBackbone)
    theirs = create(timm_name(model), pooling="native")
    theirs.load_state_dict(load(content))
    if network.pooling in POOLINGS:
        theirs.reset_classifier(0, "")  # a map instead of pooled features, as our pooling expects
    network.backbone.model = theirs.eval()
    return network


def timm_name(model: "EmbeddingModel") -> str:
    """Return what timm calls the backbone; a ValueError if timm does not have it."""
    backbone = model.network.backbone
    if not isinstance(backbone, TimmBackbone):
        raise ValueError(
            f"timm has no {type(backbone).__name__}; use --to hf, --to onnx or --to torch-export"
        )
    settings: Any = backbone.model.pretrained_cfg
    return str(settings["architecture"])


@dataclass(frozen=True)
class SingleFile:
    """One file that others run: what it ends in, what writes it, and what runs it for the comparison."""

    suffix: str
    write: Callable[["EmbeddingModel"], bytes]
    run: Callable[[bytes, "EmbeddingModel"], Forward]


FORMATS = {
    "onnx": SingleFile(".onnx", to_onnx, lambda content, _: run_onnx(content)),
    "torch-export": SingleFile(".pt2", to_torch_export, lambda content, _: run_torch_export(content)),
    "timm": SingleFile(".safetensors", to_timm, run_timm),
}


def format_of(path: Path) -> str:
    """Return the format that a file's name asks for.

    >>> format_of(Path("model.onnx"))
    'onnx'
    """
    for name, each in FORMATS.items():
        if path.suffix == each.suffix:
            return name
    suffixes = ", ".join(f"{each.suffix} ({name})" for name, each in FORMATS.items())
    raise ValueError(f"{path} must end in one of {suffixes}; for a Hugging Face folder: save_pretrained")


def write_model_folder(folder: Path, run: Run, model: "EmbeddingModel", *, licence: str | None) -> None:
    """Write config.json, model.safetensors and README.md, the model card, of a run."""
    if (folder / "recipe.yaml").exists() or folder.is_file():
        raise ValueError(f"{folder} is a run or a file, not a folder for an export; choose another folder")
    settings = run.recipe().model.model_copy(update={"pretrained": False})  # it may be a path of this machine
    config = ModelConfig(model=settings, **describe(model))
    write_text(folder / "README.md", model_card(run, config, licence=licence))
    write_weights(folder, config, model.network)


def write_weights(folder: Path, config: ModelConfig, network: "Embedder") -> None:
    """Write model.safetensors and config.json."""
    weights = {name: tensor.cpu().contiguous() for name, tensor in network.state_dict().items()}
    with atomic_write(folder / WEIGHTS) as file:
        file.write(save(weights, {"format": "pt"}))
    write_json(folder / CONFIG, config.model_dump(mode="json", by_alias=True))  # last: it makes it a model


def push_folder(folder: Path, name: str, api: "HfApi | None" = None) -> str:
    """Upload a folder to `user/name` on the hub and return its address; a new repository is private."""
    from huggingface_hub import HfApi

    api = api or HfApi()
    try:
        address = api.create_repo(name, private=True, exist_ok=True)
        api.upload_folder(repo_id=name, folder_path=folder, allow_patterns=[CONFIG, WEIGHTS, "README.md"])
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise OSError(
            f"{name} cannot be uploaded ({reason}); what is here is complete: run `hf auth login`, then again"
        ) from None
    return str(address)


def _traced(model: "EmbeddingModel") -> torch.export.ExportedProgram:
    shape = (2, model.network.backbone.in_channels, model.crop, model.crop)
    images = torch.zeros(shape, dtype=torch.uint8, device=model.device)
    network = copy.deepcopy(model.network).to(memory_format=torch.contiguous_format)  # a .pt2 needs it
    batch = torch.export.Dim("batch")
    return torch.export.export(network, (images,), dynamic_shapes={INPUT: {0: batch}})


def _need_onnx() -> None:
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ValueError(f"ONNX needs {error.name}: pip install 'softwarp[export]'") from None


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep to ourselves what exporters log about optional packages and quantisation."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
