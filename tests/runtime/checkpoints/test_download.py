"""GGUF files of a hub and of addresses: chosen, fetched in pieces, checked, pinned; one line where that fails."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bough.cli.main import main
from bough.runtime.checkpoints import download
from bough.runtime.checkpoints.download import check_address
from bough.runtime.checkpoints.hub import is_hub_name, is_remote_file
from bough.runtime.checkpoints.locate import locate, model_name
from bough.runtime.checkpoints.pins import slug
from bough.runtime.checkpoints.remote import fetch_file, folder_of, place_of_pin
from bough.runtime.protocol.errors import ModelError

from .hub_server import HubServer, hub_server

CONTENT = b"GGUF" + bytes(range(256)) * 4000
FILE = "tiny-Q4_K_M.gguf"
SOURCE = "some/model:Q4_K_M"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("BOUGH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(download, "WAIT_S", 0.0)
    with hub_server() as served:
        monkeypatch.setenv("HF_ENDPOINT", served.url)
        served.files = {FILE: CONTENT, "tiny-Q8_0.gguf": CONTENT + b"8", "big-Q6_K-00001-of-00002.gguf": CONTENT}
        yield served


def ranges(hub: HubServer) -> list[str | None]:
    return [asked for path, asked in hub.asked if "/api/" not in path]


@pytest.mark.parametrize("source", [SOURCE, "some/model:q4_k_m", f"some/model:{FILE}", f"some/model@v1:{FILE}"])
def test_a_file_of_the_hub(hub: HubServer, source: str) -> None:
    steps: list[tuple[str, int, int]] = []
    path = fetch_file(source, progress=lambda *step: steps.append(step))
    assert path.name == FILE and path.read_bytes() == CONTENT
    assert steps[-1] == ("download", len(CONTENT), len(CONTENT))
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["origin.json", FILE]
    assert locate(source) == path and model_name(source, path) == source
    assert len(hub.asked) == 2  # what is there is not asked for again


@pytest.mark.parametrize("kind", ["link", "dangling", "pipe"])
def test_a_part_that_somebody_else_has_planted_is_not_followed(hub: HubServer, kind: str, tmp_path: Path) -> None:
    part, other = folder_of(SOURCE) / f"{FILE}.part", tmp_path / "other"
    part.parent.mkdir(parents=True)
    if kind == "pipe":
        os.mkfifo(part)
    else:
        part.symlink_to(other)
    if kind == "link":
        other.write_text("mine")
    with pytest.raises(ModelError, match=r"\.part is a link or no file, and nothing was written to it: remove it"):
        fetch_file(SOURCE)
    assert not other.exists() if kind != "link" else other.read_text() == "mine"
    part.unlink()
    assert fetch_file(SOURCE).read_bytes() == CONTENT


def test_who_waits_for_another_download_says_so(hub: HubServer, caplog: pytest.LogCaptureFixture) -> None:
    part = folder_of(SOURCE) / f"{FILE}.part"
    part.parent.mkdir(parents=True)
    with part.open("ab+") as held, ThreadPoolExecutor(1) as pool:
        fcntl.flock(held, fcntl.LOCK_EX)
        fetched = pool.submit(fetch_file, SOURCE)
        deadline = time.monotonic() + 10
        while not caplog.messages and time.monotonic() < deadline:
            time.sleep(0.005)
        assert caplog.messages == [f"another process is downloading {SOURCE}: waiting for it"]
        assert not fetched.done()
        fcntl.flock(held, fcntl.LOCK_UN)
        assert fetched.result(10).read_bytes() == CONTENT
    caplog.clear()
    assert fetch_file(SOURCE) and not caplog.messages


def test_a_transfer_that_breaks_off_goes_on(hub: HubServer) -> None:
    hub.breaks = [300_000, 200_000]
    assert fetch_file(SOURCE).read_bytes() == CONTENT
    first, second, third = ranges(hub)
    assert first is None and second is not None and third is not None
    assert 200_000 <= int(second[6:-1]) <= 300_000 < int(third[6:-1]) <= 500_000


def test_a_later_pull_goes_on_too(hub: HubServer) -> None:
    hub.breaks = [300_000, *[0] * download.MAX_FAILURES]
    with pytest.raises(ModelError, match=r"after 0\.[23] MB, 5 times: run the command again to resume"):
        fetch_file(SOURCE)
    begun = folder_of(SOURCE) / f"{FILE}.part"
    size = begun.stat().st_size
    assert 200_000 <= size <= 300_000
    hub.asked.clear()
    assert fetch_file(SOURCE).read_bytes() == CONTENT
    assert ranges(hub) == [f"bytes={size}-"]
    assert not begun.exists()


def test_a_file_that_has_changed_meanwhile_is_fetched_anew(hub: HubServer) -> None:
    url = f"{hub.url}/{FILE}"
    hub.breaks = [300_000, *[0] * download.MAX_FAILURES]
    with pytest.raises(ModelError, match="run the command again"):
        fetch_file(url)
    hub.files[FILE], hub.etag = CONTENT[::-1].replace(CONTENT[::-1][:4], b"GGUF", 1), '"two"'
    assert fetch_file(url).read_bytes() == hub.files[FILE]


@pytest.mark.parametrize("ranges_known", [True, False])
def test_a_server_without_etags_or_ranges(hub: HubServer, ranges_known: bool) -> None:
    hub.etag, hub.ranges, hub.breaks = None, ranges_known, [300_000]
    assert fetch_file(SOURCE).read_bytes() == CONTENT


def test_an_address_without_an_etag_is_never_pieced_together(hub: HubServer) -> None:
    hub.etag, hub.breaks = None, [300_000]
    assert fetch_file(f"{hub.url}/{FILE}").read_bytes() == CONTENT
    assert ranges(hub) == [None, None]


def test_a_server_that_is_busy_is_asked_again(hub: HubServer) -> None:
    hub.statuses = [0, 503, 429]
    assert fetch_file(SOURCE).read_bytes() == CONTENT


def test_another_file_than_the_hub_states_is_refused(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    listing = hub.listing().replace(hashlib.sha256(CONTENT).hexdigest().encode(), b"0" * 64)
    monkeypatch.setattr(hub, "listing", lambda: listing)
    with pytest.raises(ModelError, match=r"0{64} was expected; nothing was kept"):
        fetch_file(SOURCE)
    assert not folder_of(SOURCE).exists() and not place_of_pin(SOURCE).exists()


def test_the_first_time_is_that_of_all_times(hub: HubServer) -> None:
    """Commit and hash are pinned: a new commit is not taken, and another file under the old one is refused."""
    path = fetch_file(SOURCE)
    pin = json.loads(place_of_pin(SOURCE).read_bytes())
    assert pin["revision"] == hub.commit
    assert pin["files"][FILE]["sha256"] == hashlib.sha256(CONTENT).hexdigest()
    path.unlink()
    hub.asked.clear()
    assert fetch_file(SOURCE).read_bytes() == CONTENT
    assert [asked for asked, _ in hub.asked] == [f"/some/model/resolve/{hub.commit}/{FILE}"]
    path.unlink()
    hub.files[FILE] = CONTENT + b"more"
    with pytest.raises(ModelError, match="was expected; nothing was kept"):
        fetch_file(SOURCE)


def test_a_changed_file_is_found_out(hub: HubServer, capsys: pytest.CaptureFixture[str]) -> None:
    path = fetch_file(SOURCE)
    status = path.stat()
    path.write_bytes(CONTENT[:-1] + b"x")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert fetch_file(SOURCE) == path  # an engine looks at size and time alone
    assert main(["pull", SOURCE]) == 3
    assert f"bough models remove {SOURCE}, then bough pull {SOURCE}" in capsys.readouterr().err
    path.touch()
    with pytest.raises(ModelError, match="does not match its hash"):
        locate(SOURCE)


def test_an_address_and_what_it_must_be(hub: HubServer) -> None:
    url = f"{hub.url}/{FILE}"
    with pytest.raises(ModelError, match=r"f{64} was expected"):
        fetch_file(url, sha256="f" * 64)
    path = fetch_file(url, sha256=hashlib.sha256(CONTENT).hexdigest())
    assert model_name(url, path) == "tiny-Q4_K_M"
    with pytest.raises(ModelError, match="is pinned with SHA-256"):
        fetch_file(url, sha256="f" * 64)


def test_two_at_once(hub: HubServer) -> None:
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: fetch_file(SOURCE), range(2))
    assert first == second and first.read_bytes() == CONTENT
    assert sorted(entry.name for entry in first.parent.iterdir()) == ["origin.json", FILE]


def test_the_token_goes_to_the_hub_alone(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    fetch_file(SOURCE)
    assert set(hub.tokens) == {"Bearer hf_secret"}
    hub.tokens.clear()
    fetch_file(f"{hub.url}/{FILE}")
    assert hub.tokens == [None]


@pytest.mark.parametrize(
    ("leads_to", "said"),
    [
        ("http://example.org/x.gguf", r"http://example\.org is not encrypted"),
        ("ftp://example.org/x.gguf", r"is not a URL: give one that begins with https://"),
        ("/loop.gguf", r"cannot be reached|Exceeded maximum allowed redirects"),
    ],
)
def test_a_redirect_is_checked_before_it_is_followed(hub: HubServer, leads_to: str, said: str) -> None:
    hub.redirects = {"/loop.gguf": leads_to}
    with pytest.raises(ModelError, match=said):
        fetch_file(f"{hub.url}/loop.gguf")
    assert not folder_of(f"{hub.url}/loop.gguf").exists()


def test_a_redirect_within_what_is_safe_is_followed(hub: HubServer) -> None:
    hub.redirects = {"/moved.gguf": f"/{FILE}"}
    assert fetch_file(f"{hub.url}/moved.gguf").read_bytes() == CONTENT


def test_no_other_server_leads_to_this_machine() -> None:
    check_address("m", "http://127.0.0.1:8000/x", local=True)
    for address in ("http://127.0.0.1:8000/x", "https://localhost/x", "http://[::1]/x"):
        with pytest.raises(ModelError, match=r"its server redirects to .*, this machine; nothing was fetched"):
            check_address("m", address, local=False)


def test_no_token_goes_over_a_connection_that_others_can_read(monkeypatch: pytest.MonkeyPatch, hub: HubServer) -> None:
    def sends(*_: object) -> None:
        pytest.fail("something was sent")

    monkeypatch.setattr("httpx.HTTPTransport.handle_request", sends)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("HF_ENDPOINT", "http://example.org")
    with pytest.raises(ModelError, match=r"HF_ENDPOINT: http://example\.org is not encrypted"):
        fetch_file(SOURCE)


def test_names_that_would_control_the_terminal_are_no_files(hub: HubServer) -> None:
    hub.files = {"\x1b[2Jtiny-Q4_K_M.gguf": CONTENT, "tiny-Q8_0.gguf": CONTENT}
    with pytest.raises(ModelError, match=r"has no file Q4_K_M: it has tiny-Q8_0\.gguf$"):
        fetch_file(SOURCE)


def test_more_than_was_announced_is_not_taken(hub: HubServer) -> None:
    """A part that begins after the end of the file is not gone on with."""
    folder = folder_of(SOURCE)
    folder.mkdir(parents=True)
    (folder / f"{FILE}.part").write_bytes(CONTENT + b"more")
    assert fetch_file(SOURCE).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("some/model:Q5_K_M", r"some/model has no file Q5_K_M: it has tiny-Q4_K_M\.gguf, tiny-Q8_0\.gguf"),
        ("some/model:Q4_K", r"has no file Q4_K: it has"),
        ("some/model:no.gguf", r"has no file no\.gguf: it has"),
        ("some/model:tiny", r"several tiny files: name one, some/model:tiny-Q4_K_M\.gguf \(or tiny-Q8_0\.gguf\)"),
        ("some/model:Q6_K", r"is part of a split file: choose a whole one"),
        ("no/model:Q4_K_M", r"127\.0\.0\.1 answered 404: no such model or file: check the name"),
        ("URL/none.gguf", r"answered 404"),
        ("URL/model.bin", r"a model's address must end in \.gguf"),
        ("http://example.org/model.gguf", r"http://example\.org is not encrypted: give an https:// address"),
        (
            "https://127.0.0.1:1/model.gguf",
            r"127\.0\.0\.1 cannot be reached \(.*\)\. Check the network and HTTPS_PROXY, or",
        ),
    ],
)
def test_failures_are_one_line_and_leave_nothing(
    source: str, said: str, hub: HubServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pull", source.replace("URL", hub.url)]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("bough pull: ") and re.search(said, line), line
    assert [path for path in (tmp_path / "cache").rglob("*") if path.is_file()] == []


def test_what_is_no_gguf_is_refused_at_its_first_bytes(hub: HubServer) -> None:
    hub.files["page.gguf"] = b"<html>" + bytes(10_000_000)
    with pytest.raises(ModelError, match=r"is not a GGUF file \(it begins with b'<htm'\)"):
        fetch_file(f"{hub.url}/page.gguf")


def test_a_full_disk_is_told_before(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1000})())
    with pytest.raises(ModelError, match="remove a model \\(bough models\\), or set BOUGH_CACHE"):
        fetch_file(SOURCE)


def test_a_file_of_unknown_length_does_not_fill_the_disk(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.lengths, hub.files["long.gguf"] = False, b"GGUF" + bytes(10_000_000)
    assert fetch_file(f"{hub.url}/long.gguf").stat().st_size == 10_000_004
    free = iter([*range(1 << 31, 0, -(1 << 29)), *[0] * 200])
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": next(free)})())
    hub.files["other.gguf"] = hub.files["long.gguf"]
    with pytest.raises(ModelError, match="does not say how large it is"):
        fetch_file(f"{hub.url}/other.gguf")
    assert not [path for path in folder_of(f"{hub.url}/other.gguf").rglob("*") if path.stat().st_size > 1000]


def test_without_a_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("BOUGH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_ENDPOINT", "https://127.0.0.1:1")
    assert main(["pull", SOURCE]) == 3
    *_, line = capsys.readouterr().err.splitlines()  # others of the process may log
    assert f"{SOURCE} cannot be fetched: 127.0.0.1 cannot be reached" in line


def test_names() -> None:
    for name in (SOURCE, "a/b@v1:x.gguf", "a/b:folder/x.gguf", "https://x.org/y.gguf"):
        assert is_remote_file(name) and not is_hub_name(name)
    for name in ("a/b", "a/b@v1", "smollm2-135m", "./a/b.gguf", "/a/b:c", "C:model"):
        assert not is_remote_file(name)
    names = {slug(name) for name in ("a--b/c:d", "a/b--c:d", "a/b:c:d", "https://x.org/a.gguf", "https://y.org/a.gguf")}
    assert len(names) == 5 and all("/" not in name and not name.startswith(".") for name in names)
