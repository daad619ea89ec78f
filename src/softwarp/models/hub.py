"""The hub that timm fetches weights from: their address, and whether it can be reached."""

FILES = ("model.safetensors", "pytorch_model.bin")  # the names that timm looks for
PATIENCE = 30.0  # seconds for a connection, and for an answer


def address_to_fetch(name: str) -> str | None:
    """Return where timm would fetch a model's weights from; None if the hub's cache on this machine has them.

    >>> address_to_fetch("small_conv")  # not a model of timm
    """
    import timm
    from huggingface_hub import hf_hub_url, try_to_load_from_cache

    try:
        config = timm.get_pretrained_cfg(name)
    except RuntimeError:  # an unknown tag, which building the model reports
        return None
    repository = config.hf_hub_id if config else None
    if not repository or any(isinstance(try_to_load_from_cache(repository, file), str) for file in FILES):
        return None
    return hf_hub_url(repository, FILES[0])


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
