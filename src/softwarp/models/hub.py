"""The hub that timm fetches weights from: addresses, its cache, and whether it can be reached."""

from pathlib import Path

FILES = ("model.safetensors", "pytorch_model.bin")  # the names that timm looks for
PATIENCE = 30.0  # seconds for a connection, and for an answer


def address_to_fetch(name: str) -> str | None:
    """Return where timm would fetch a model's weights from; None if the hub's cache on this machine has them.

    >>> address_to_fetch("small_conv")  # not a model of timm
    """
    return None if cached_file(name) else hub_address(name)


def hub_address(name: str) -> str | None:
    """Return the address of a model's weights on the hub; None if timm knows none.

    >>> hub_address("test_vit")
    'https://huggingface.co/timm/test_vit.r160_in1k/resolve/main/model.safetensors'
    """
    from huggingface_hub import hf_hub_url

    repository = repository_of(name)
    return hf_hub_url(repository, FILES[0]) if repository else None


def cached_file(name: str) -> Path | None:
    """Return the file in the hub's cache with a model's weights; None if it is not there."""
    from huggingface_hub import try_to_load_from_cache

    repository = repository_of(name)
    found = (try_to_load_from_cache(repository, file) for file in FILES if repository)
    return next((Path(path) for path in found if isinstance(path, str)), None)


def repository_of(name: str) -> str | None:
    """Return the hub's repository with the weights of a timm model; None if there is none."""
    import timm

    try:
        config = timm.get_pretrained_cfg(name)
    except RuntimeError:  # an unknown tag, which building the model reports
        return None
    return config.hf_hub_id if config and config.hf_hub_id else None


def ask_hub(address: str) -> None:
    """Raise an OSError unless the hub answers, even if with a refusal.

    This is one request without retries: an unknown host or a refused connection shows at once, while the
    hub's library would try a dozen times. A slow connection has time; the library does the download itself.
    """
    from huggingface_hub import get_hf_file_metadata
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    try:
        get_hf_file_metadata(address, timeout=PATIENCE)
    except (HfHubHTTPError, OfflineModeIsEnabled):
        return  # the library handles these at once
    except Exception as error:  # depends on the library's HTTP client
        raise OSError(f"no answer from {address} ({error or type(error).__name__})") from None
