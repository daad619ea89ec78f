"""Puts weights where the hub's library keeps what it has fetched."""

from safetensors.torch import save_file


def put_into_cache(cache, repository, weights):
    """Return the file with these weights in the hub's cache folder."""
    folder = cache / f"models--{repository.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("f" * 40)
    (folder / "snapshots" / ("f" * 40)).mkdir(parents=True)
    file = folder / "snapshots" / ("f" * 40) / "model.safetensors"
    save_file(weights, file)
    return file
