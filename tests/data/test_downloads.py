import hashlib
import io
import tarfile
import threading
import zipfile
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from support.layouts import make_cub, make_sop
from typer.testing import CliRunner

from softwarp.commands.data import app
from softwarp.data import downloads
from softwarp.data.downloads import download, is_there
from softwarp.data.tables import read_table


class Server(ThreadingHTTPServer):
    """Serves `content`; `ranges`, `length` and `stop_after` say how well, `asked` what for."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.content, self.ranges, self.length, self.stop_after = b"", True, True, None
        self.asked, self.status, self.go_on = [], 200, threading.Event()
        self.go_on.set()
        self.address = f"http://127.0.0.1:{self.server_port}/archive"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        server, asked = self.server, self.headers.get("Range")
        server.asked.append(asked)
        start, total = 0, len(server.content)
        if server.status != 200:
            self.send_error(server.status)
            return
        if asked and server.ranges:
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
            if start >= total:
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{total}")
                self.end_headers()
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{total - 1}/{total}")
        else:
            self.send_response(200)
        if server.length:
            self.send_header("Content-Length", str(total - start))
        self.end_headers()
        self.wfile.write(server.content[start : server.stop_after])
        server.go_on.wait(10)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server():
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def cub(tmp_path):
    """The bytes of a small CUB_200_2011.tgz; like the real one it has a file beside the folder."""
    make_cub(tmp_path / "made" / "CUB_200_2011")
    (tmp_path / "made" / "attributes.txt").write_text("1 has_bill")
    return packed(tmp_path / "made")


def packed(folder, **extra):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for path in sorted(folder.iterdir()):
            tar.add(path, path.name)
        for name, kind in extra.get("members", []):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, extra.get("link", "")
            tar.addfile(member, io.BytesIO())
    return buffer.getvalue()


def md5(content):
    return hashlib.md5(content).hexdigest()


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_tar_archive_arrives_whole(server, cub, tmp_path):
    server.content, steps = cub, []
    folder = download(
        "cub",
        tmp_path / "new" / "data",
        address=server.address,
        md5=md5(cub),
        progress=lambda *step: steps.append(step),
    )
    assert folder == tmp_path / "new" / "data" / "CUB_200_2011"
    assert len(read_table("cub", folder).paths) == 8
    assert names(tmp_path / "new" / "data") == ["CUB_200_2011"]
    assert [step[0] for step in steps if step[1] == step[2]][:2] == ["downloading", "verifying"]
    assert steps[-1][0] == "unpacking"


def test_a_zip_archive_arrives_whole(server, tmp_path):
    make_sop(tmp_path / "made")
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as content:
        for path in (tmp_path / "made").rglob("*"):
            content.write(path, f"Stanford_Online_Products/{path.relative_to(tmp_path / 'made')}")
        content.writestr("__MACOSX/._junk", "")
    server.content = buffer.getvalue()
    folder = download("sop", tmp_path / "data", address=server.address, md5=md5(server.content))
    assert len(read_table("sop", tmp_path / "data").paths) == 5
    assert names(folder.parent) == ["Stanford_Online_Products"]


def test_what_is_there_is_not_fetched_again(server, cub, tmp_path):
    make_cub(tmp_path / "CUB_200_2011")
    assert is_there("cub", tmp_path)
    assert download("cub", tmp_path, address=server.address) == tmp_path / "CUB_200_2011"
    assert server.asked == []
    (tmp_path / "CUB_200_2011" / "classes.txt").unlink()
    with pytest.raises(ValueError, match=r"CUB_200_2011 .*classes\.txt"):
        download("cub", tmp_path, address=server.address)


def test_an_interrupted_transfer_goes_on_where_it_was(server, cub, tmp_path):
    server.content, server.stop_after = cub, 300
    with pytest.raises(OSError, match=f"300 of {len(cub)} bytes"):
        download("cub", tmp_path / "data", address=server.address, md5=md5(cub))
    assert names(tmp_path / "data") == ["CUB_200_2011.tgz.part"]
    server.stop_after = 400
    with pytest.raises(OSError, match=f"400 of {len(cub)} bytes"):
        download("cub", tmp_path / "data", address=server.address, md5=md5(cub))
    server.stop_after = None
    download("cub", tmp_path / "data", address=server.address, md5=md5(cub))
    assert server.asked == [None, "bytes=300-", "bytes=400-"]
    assert names(tmp_path / "data") == ["CUB_200_2011"]


def test_a_server_that_falls_silent_is_left(server, cub, tmp_path, monkeypatch):
    server.content, server.stop_after, urlopen = cub, 300, downloads.urllib.request.urlopen
    server.go_on.clear()
    hasty = lambda request, timeout: urlopen(request, timeout=timeout / 300)  # noqa: E731
    monkeypatch.setattr(downloads.urllib.request, "urlopen", hasty)
    with pytest.raises(OSError, match="timed out"):
        download("cub", tmp_path / "data", address=server.address, md5=md5(cub))
    server.go_on.set()


@pytest.mark.parametrize("length", [300, 10**6])
def test_a_server_without_ranges_sends_it_all_again(server, cub, tmp_path, length):
    server.content, server.ranges = cub, False
    (tmp_path / "CUB_200_2011.tgz.part").write_bytes(b"x" * length)
    download("cub", tmp_path, address=server.address, md5=md5(cub))
    assert server.asked == [f"bytes={length}-"]
    assert is_there("cub", tmp_path)


@pytest.mark.parametrize("have", [0, 300])
def test_a_server_that_tells_no_length_is_read_to_its_end(server, cub, tmp_path, have):
    server.content, server.length, steps = cub, False, []
    (tmp_path / "CUB_200_2011.tgz.part").write_bytes(cub[:have])
    download("cub", tmp_path, address=server.address, md5=md5(cub), progress=lambda *step: steps.append(step))
    assert ("downloading", len(cub), None) in steps
    assert is_there("cub", tmp_path)


def test_a_run_killed_before_the_checksum_does_not_fetch_again(server, cub, tmp_path):
    server.content = cub
    (tmp_path / "CUB_200_2011.tgz.part").write_bytes(cub)
    download("cub", tmp_path, address=server.address, md5=md5(cub))
    assert server.asked == [f"bytes={len(cub)}-"]
    assert is_there("cub", tmp_path)


def test_a_part_longer_than_the_file_is_dropped(server, cub, tmp_path):
    server.content = cub
    (tmp_path / "CUB_200_2011.tgz.part").write_bytes(cub + b"more")
    with pytest.raises(OSError, match="416"):
        download("cub", tmp_path, address=server.address, md5=md5(cub))
    download("cub", tmp_path, address=server.address, md5=md5(cub))
    assert is_there("cub", tmp_path)


def test_a_run_killed_while_unpacking_starts_from_the_archive(server, cub, tmp_path):
    (tmp_path / "CUB_200_2011.tgz").write_bytes(cub)
    (tmp_path / ".CUB_200_2011.unpacking-x").mkdir()
    (tmp_path / ".CUB_200_2011.unpacking-x" / "half.jpg").write_text("")
    download("cub", tmp_path, address=server.address, md5=md5(cub))
    assert server.asked == []
    assert "CUB_200_2011" in names(tmp_path)
    assert not [name for name in names(tmp_path) if "unpacking" in name or "tgz" in name]


@pytest.mark.parametrize("sums", [{"md5": "0" * 32}, {}])
def test_a_wrong_checksum_is_refused_and_the_file_dropped(server, cub, tmp_path, sums):
    server.content = cub
    with pytest.raises(ValueError, match="md5"):
        download("cub", tmp_path / "data", address=server.address, **sums)
    assert names(tmp_path / "data") == []


def refused(server, tmp_path, content, name="cub"):
    server.content = content
    with pytest.raises(ValueError, match=downloads.ARCHIVES[name].file) as caught:
        download(name, tmp_path / "data", address=server.address, md5=md5(content))
    assert names(tmp_path / "data") == [downloads.ARCHIVES[name].file]
    assert not (tmp_path / "escaped").exists()
    return str(caught.value)


@pytest.mark.parametrize(
    ("member", "kind", "link"),
    [
        ("../../escaped", tarfile.REGTYPE, ""),
        ("CUB_200_2011/../../../escaped", tarfile.REGTYPE, ""),
        ("CUB_200_2011/link", tarfile.SYMTYPE, "../../../escaped"),
        ("CUB_200_2011/link", tarfile.SYMTYPE, "/etc/passwd"),
        ("CUB_200_2011/link", tarfile.LNKTYPE, "../../escaped"),
        ("CUB_200_2011/link", tarfile.SYMTYPE, "images.txt"),
        ("CUB_200_2011/link", tarfile.LNKTYPE, "CUB_200_2011/images.txt"),
        ("CUB_200_2011/pipe", tarfile.FIFOTYPE, ""),
        ("CUB_200_2011/device", tarfile.CHRTYPE, ""),
    ],
)
def test_a_tar_member_cannot_leave_the_folder(server, cub, tmp_path, member, kind, link):
    refused(server, tmp_path, packed(tmp_path / "made", members=[(member, kind)], link=link))


def test_a_tar_whose_folder_is_a_link_to_its_sibling_is_refused(server, cub, tmp_path):
    made = tmp_path / "made"
    (made / "CUB_200_2011").rename(made / "birds")
    (made / "CUB_200_2011").symlink_to("birds")
    assert "'CUB_200_2011' is a link" in refused(server, tmp_path, packed(made))


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_an_archive_that_swells_beyond_measure_is_refused(server, cub, tmp_path, monkeypatch, kind):
    for name, archive in list(downloads.ARCHIVES.items()):
        monkeypatch.setitem(downloads.ARCHIVES, name, replace(archive, size=100_000))
    made = tmp_path / "made"
    (made / "CUB_200_2011" / "zeros").write_bytes(bytes(300_001))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as content:
        content.writestr("Stanford_Online_Products/zeros", bytes(300_001))
    name, bomb = ("cub", packed(made)) if kind == "tar" else ("sop", buffer.getvalue())
    assert len(bomb) < 3000
    assert "300,000" in refused(server, tmp_path, bomb, name)


def test_a_part_that_is_a_link_is_not_written_through(server, cub, tmp_path):
    server.content = cub
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "CUB_200_2011.tgz.part").symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match=r"CUB_200_2011\.tgz\.part .*link"):
        download("cub", tmp_path / "data", address=server.address, md5=md5(cub))
    assert (tmp_path / "precious").read_text() == "mine"
    assert server.asked == []


def test_an_absolute_tar_member_lands_in_the_temporary_folder(server, cub, tmp_path):
    member = str(tmp_path / "escaped")
    server.content = packed(tmp_path / "made", members=[(member, tarfile.REGTYPE)])
    download("cub", tmp_path / "data", address=server.address, md5=md5(server.content))
    assert not (tmp_path / "escaped").exists()
    assert names(tmp_path / "data") == ["CUB_200_2011"]


@pytest.mark.parametrize(
    ("member", "mode"),
    [
        ("../../escaped", 0),
        ("/escaped", 0),
        ("..\\..\\escaped", 0),
        ("C:\\escaped", 0),
        ("Stanford_Online_Products/link", 0o120777),
        ("Stanford_Online_Products/device", 0o020666),
    ],
)
def test_a_zip_member_cannot_leave_the_folder(server, tmp_path, member, mode):
    buffer, info = io.BytesIO(), zipfile.ZipInfo(member)
    info.external_attr = mode << 16
    with zipfile.ZipFile(buffer, "w") as content:
        content.writestr(info, "../../escaped")
    text = refused(server, tmp_path, buffer.getvalue(), name="sop")
    assert "out of the folder" in text or "link" in text


def test_a_zip_member_with_broken_content_is_refused(server, tmp_path):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as content:
        content.writestr("Stanford_Online_Products/a.txt", b"sixteen letters!")
    refused(server, tmp_path, buffer.getvalue().replace(b"sixteen", b"sevente"), name="sop")
    (tmp_path / "data" / "Stanford_Online_Products.zip").unlink()
    locked = bytearray(buffer.getvalue())
    locked[locked.rindex(b"PK\x01\x02") + 8] |= 1
    assert "encrypted" in refused(server, tmp_path, bytes(locked), name="sop")


def test_an_archive_that_is_cut_or_lacks_files_is_refused(server, cub, tmp_path):
    assert "Compressed file ended" in refused(server, tmp_path, cub[:-200])
    (tmp_path / "data" / "CUB_200_2011.tgz").unlink()
    (tmp_path / "made" / "CUB_200_2011" / "classes.txt").unlink()
    assert "classes.txt" in refused(server, tmp_path, packed(tmp_path / "made"))
    (tmp_path / "data" / "CUB_200_2011.tgz").unlink()
    (tmp_path / "made" / "CUB_200_2011" / "classes.txt").write_text("1\n")
    assert "2 columns" in refused(server, tmp_path, packed(tmp_path / "made"))


def test_errors_of_the_server_say_what_to_do(server, tmp_path):
    server.status = 404
    with pytest.raises(OSError, match=r"404.*--address"):
        download("cub", tmp_path, address=server.address)
    with pytest.raises(OSError, match="--address"):
        download("cub", tmp_path, address="http://127.0.0.1:9/nobody")


def test_names_that_cannot_be_fetched(tmp_path):
    with pytest.raises(ValueError, match="cars_test_annos_withlabels"):
        download("cars", tmp_path)
    with pytest.raises(ValueError, match="did you mean cub"):
        download("cub200", tmp_path)


def test_the_command_fetches_once(server, cub, tmp_path, monkeypatch):
    server.content = cub
    archive = downloads.Archive(server.address, "CUB_200_2011.tgz", "CUB_200_2011", md5(cub), 10_000)
    monkeypatch.setitem(downloads.ARCHIVES, "cub", archive)
    first, second = (CliRunner().invoke(app, ["cub", "--to", str(tmp_path / "data")]) for _ in range(2))
    assert (first.exit_code, second.exit_code) == (0, 0), first.output
    assert str(tmp_path / "data" / "CUB_200_2011") in first.stdout
    assert "already" in second.stdout
    assert len(server.asked) == 1


def test_one_missing_image_makes_an_archive_or_a_folder_incomplete(server, cub, tmp_path):
    (image, *_) = (tmp_path / "made").glob("CUB_200_2011/images/*/*_0.jpg")
    image.unlink()
    assert "1 of 8 " in refused(server, tmp_path, packed(tmp_path / "made"))
    with pytest.raises(ValueError, match="1 of 8 "):
        is_there("cub", tmp_path / "made")
