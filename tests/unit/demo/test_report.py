"""The report is made from files that hold model output: whatever stands in them, the page shows it as text."""

import re

from bashgym.demo.report import clip, prompt_text, write_report


def test_hostile_content_is_text(story, tmp_path):
    page = write_report(story, tmp_path).read_text()
    assert "<script" not in page.lower()
    assert "onerror=&#34;" in page and not re.search(r"<img[^>]*onerror", page)
    assert "{{ 7*7 }}" in page and "49" not in re.findall(r"<code>(.*?)</code>", page)
    assert "\x1b" not in page
    assert "default-src 'none'" in page


def test_a_run_that_is_not_better_is_not_called_so(story, tmp_path):
    page = write_report(story, tmp_path).read_text()
    assert "HOLD" in page and "PROMOTE" not in page and "Not shown to be better" in page


def test_the_page_needs_nothing_from_elsewhere_and_pngs_stand_beside_it(story, tmp_path):
    page = write_report(story, tmp_path).read_text()
    assert not re.search(r'(?:src|href)="(?!#)', page)
    assert {p.name for p in tmp_path.glob("*.png")} == {
        "loss.png",
        "pass_at_1.png",
        "by_family.png",
        "reward.png",
        "rlvr_by_family.png",
    }
    assert all(p.read_bytes()[:4] == b"\x89PNG" for p in tmp_path.glob("*.png"))


def test_the_second_act_says_what_its_comparison_and_its_card_say(story, tmp_path):
    page = write_report(story, tmp_path).read_text()
    assert "not shown to be better than the SFT model" in page and "Its RunCard says hold: x." in page
    story.second = None
    page = write_report(story, tmp_path).read_text()
    assert "Second act" not in page and "RLVR" not in page


def test_long_and_repeated_text_is_shortened():
    assert clip("\ufffd" * 48) == "\ufffd\ufffd\ufffd… (48 times)"
    assert len(clip("ab" * 1000)) <= 221
    assert prompt_text([{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]) == "u"
