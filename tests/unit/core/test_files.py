import os
import subprocess
import sys

import pytest

from bashgym.core.errors import CODES, BashGymError, fail
from bashgym.core.files import atomic_write_json, confined, read_json, writable_dir


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../x", "", ".", "a\0b", "link/x"])
def test_names_that_leave_the_folder_are_refused(tmp_path, name):
    root = tmp_path / "root"
    root.mkdir()
    (root / "link").symlink_to(tmp_path)
    with pytest.raises(BashGymError) as caught:
        confined(root, name)
    assert caught.value.code == "path_outside"


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path):
    path = tmp_path / "state.json"
    atomic_write_json(path, {"a": 1})
    with pytest.raises(ValueError):
        atomic_write_json(path, {"a": float("nan")})
    with pytest.raises(TypeError):
        atomic_write_json(path, {"a": object()})
    assert read_json(path) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["state.json"]


def test_a_writer_killed_at_any_moment_leaves_whole_json(tmp_path):
    path = tmp_path / "state.json"
    atomic_write_json(path, {"n": 0, "pad": "x" * 100_000})
    code = (
        "import sys; from pathlib import Path; from bashgym.core.files import atomic_write_json\n"
        "n = 0\n"
        "while True:\n"
        "    n += 1; atomic_write_json(Path(sys.argv[1]), {'n': n, 'pad': 'x' * 100_000})\n"
    )
    for _ in range(3):
        child = subprocess.Popen([sys.executable, "-c", code, str(path)])
        try:
            child.wait(timeout=0.4)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        value = read_json(path)
        assert len(value["pad"]) == 100_000


def test_read_json_names_what_is_wrong(tmp_path):
    path = tmp_path / "x.json"
    path.write_bytes(b"\xff\xfe{")
    with pytest.raises(BashGymError, match="not UTF-8"):
        read_json(path)
    path.write_text('{"a": ')
    with pytest.raises(BashGymError, match="line 1"):
        read_json(path)
    path.write_text("[" * 100_000)
    with pytest.raises(BashGymError):
        read_json(path)
    with pytest.raises(BashGymError, match="does not exist"):
        read_json(tmp_path / "absent")


def test_writable_dir_says_why_not(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(BashGymError) as caught:
        writable_dir(blocked / "sub")
    assert caught.value.code == "directory_unwritable"


def test_every_code_has_a_class_with_statuses_and_pickles():
    import pickle

    for code in CODES:
        error = fail(code, "m", hint="h", fields=["f"])
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), again.detail()) == (type(error), error.detail())
        assert error.exit_status in (1, 2) and 400 <= error.http_status <= 599


def test_permissions_of_written_files_are_plain(tmp_path):
    atomic_write_json(tmp_path / "x.json", {})
    assert os.stat(tmp_path / "x.json").st_mode & 0o777 == 0o644
