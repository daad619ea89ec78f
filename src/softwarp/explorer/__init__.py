"""The landscape explorer: one page that needs no network, joined from the files beside this one."""

from importlib.resources import files

SCRIPTS = ("loss.js", "plane.js", "profile.js", "particles.js", "page.js", "inputs.js")


def page() -> str:
    """Return the page: HTML with its style and its scripts inside."""
    folder = files(__name__)
    script = "\n".join(folder.joinpath(name).read_text(encoding="utf-8") for name in SCRIPTS)
    style = folder.joinpath("page.css").read_text(encoding="utf-8")
    html = folder.joinpath("page.html").read_text(encoding="utf-8")
    return html.replace("/* page.css */", style).replace("/* scripts */", script)
