"""The report in a real browser: it renders from one file, without a network, and shows what it must."""

import shutil
import subprocess

import pytest

from bashgym.demo.report import write_report

pytestmark = pytest.mark.browser
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def _chromium(tmp_path, *argv):
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert browser, "this test needs chromium"
    return subprocess.run(
        [browser, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", *argv], capture_output=True, timeout=120
    )


def test_the_page_renders_its_pictures_and_tables(story, tmp_path):
    page = write_report(story, tmp_path)
    dom = _chromium(tmp_path, "--dump-dom", page.as_uri()).stdout.decode()
    for words in ("HOLD", "The comparison", "By task family", "Flips", "Lineage", "RunCard"):
        assert words in dom
    assert dom.count("<svg") == 5 and dom.count("<path") > 20
    assert "alert(1)" in dom and "<script>" not in dom


def test_the_page_is_not_blank(story, tmp_path):
    from PIL import Image

    page = write_report(story, tmp_path)
    shot = tmp_path / "shot.png"
    _chromium(tmp_path, "--window-size=1180,1600", f"--screenshot={shot}", page.as_uri())
    colours = Image.open(shot).convert("RGB").getcolors(1 << 24)
    assert len(colours) > 200, "text, bars and lines have many shades"
    assert max(count for count, _ in colours) < 0.9 * 1180 * 1600
