"""The hub from which timm fetches weights: where they would come from, and whether it can be reached."""

FILES = ("model.safetensors", "pytorch_model.bin")  # as timm looks for them
PATIENCE = 30.0  # seconds for a connection, and for an answer


def address_to_fetch(name: str) -> str | None:
    """Return where timm would fetch a model's weights from; None if the hub's cache on this machine has them.

    >>> address_to_fetch("small_conv")  # not a model of timm
    """
    import timm
    from huggingface_hub import hf_hub_url, try_to_load_from_cache

    try:
        config = timm.get_pretrained_cfg(name)
    except RuntimeError:  # an unknown tag, which building the model tells
        return None
    repository = config.hf_hub_id if config else None
    if not repository or any(isinstance(try_to_load_from_cache(repository, file), str) for file in FILES):
        return None
    return hf_hub_url(repository, FILES[0])


def ask_hub(address: str) -> None:
    """Raise an OSError unless the hub answers, be it with a refusal.

    One question without retries: a name that is not known or a refused connection shows at once, while the
    hub's library would try a dozen times. A slow connection has time; the download itself is the library's.
    """
    from huggingface_hub import get_hf_file_metadata
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    try:
        get_hf_file_metadata(address, timeout=PATIENCE)
    except (HfHubHTTPError, OfflineModeIsEnabled):
        return  # the library knows what to make of it, without delay
    except Exception as error:  # that of whichever HTTP client the library is built on
        raise OSError(f"no answer from {address} ({error or type(error).__name__})") from None
