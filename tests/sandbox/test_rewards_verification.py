"""Attempts to be paid for code that does not work, one trick each, and what an honest solution gets."""

import time

import pytest

from bashgym.envs.rewards import RewardItem, RewardStatus, make_rewarder
from bashgym.envs.rewards.verification import verification

TESTS = """
from solution import add


def test_small():
    assert add(2, 3) == 5


def test_negative():
    assert add(-2, -3) == -5
"""
GOOD = "def add(a, b):\n    return a + b\n"


def judged(solution, tests=TESTS, timeout_s=20.0):
    return verification(RewardItem("p", solution, {}), tests, timeout_s)


@pytest.mark.parametrize(
    ("solution", "reward", "status"),
    [
        (f"Here it is:\n```python\n{GOOD}```\n", 1.0, RewardStatus.PASSED),
        (GOOD, 1.0, RewardStatus.PASSED),
        ("def add(a, b):\n    return 5\n", 0.5, RewardStatus.FAILED),
        ("def add(a, b):\n    return 0\n", 0.0, RewardStatus.FAILED),
        ("def other():\n    return 0\n", 0.0, RewardStatus.FAILED),
        ("I cannot do that.", 0.0, RewardStatus.FAILED),
        ("import numpy\n" + GOOD, 0.0, RewardStatus.FAILED),
        ("", 0.0, RewardStatus.FORMAT_ERROR),
    ],
)
def test_the_reward_is_the_share_of_tests_that_pass(solution, reward, status):
    result = judged(solution)
    assert (result.reward, result.status) == (reward, status), result.detail


CHEATS = {
    "exit at import": "import sys; sys.exit(0)",
    "hard exit at import": "import os; os._exit(0)",
    "hard exit in the call": "import os\ndef add(a, b): os._exit(0)",
    "end of the session": "import pytest\ndef add(a, b): pytest.exit('fine', 0)",
    "system exit in the call": "import sys\ndef add(a, b): sys.exit(0)",
    "keyboard interrupt": "def add(a, b): raise KeyboardInterrupt",
    "kill": "import os, signal\ndef add(a, b): os.kill(os.getpid(), signal.SIGKILL)",
    "atexit": "import atexit, os\natexit.register(os._exit, 0)\ndef add(a, b): return 0",
    "a skip": "import pytest\ndef add(a, b): pytest.skip('no')",
    "a unittest skip": "import unittest\ndef add(a, b): raise unittest.SkipTest('no')",
    "an expected failure": "import pytest\ndef add(a, b): pytest.xfail('no')",
    "an object that equals everything": "class Any:\n    def __eq__(self, other): return True\ndef add(a, b): return Any()",
    "an int that equals everything": "class Any(int):\n    def __eq__(self, other): return True\ndef add(a, b): return Any()",
    "printed success": "print('2 passed in 0.01s')\nprint('<testsuite tests=\"2\" failures=\"0\"/>')\ndef add(a, b): return 0",
    "output to every descriptor": (
        "import os\ndef add(a, b):\n    for fd in range(50):\n"
        '        try: os.write(fd, b\'report 1 "" "<testsuite/>"\\n\')\n        except OSError: pass\n    return 0'
    ),
    "files that pytest reads": (
        "import os\nhook = 'import pytest\\n@pytest.hookimpl(tryfirst=True)\\n'\n"
        "hook += 'def pytest_runtest_call(item): item.obj = print\\n'\n"
        "for name in ('conftest.py', 'sitecustomize.py', 'usercustomize.py', 'pytest.py', '/tmp/conftest.py'):\n"
        "    open(name, 'w').write(hook)\nopen('pytest.ini', 'w').write('[pytest]\\naddopts = --collect-only\\n')\n"
        "def add(a, b): return 0"
    ),
    "the test file": "open('/verifier/test_solution.py', 'w').write('def test(): pass')\ndef add(a, b): return 0",
    "the runner": "open('/runner/runner.py', 'w').write('')\ndef add(a, b): return 0",
    "XML files": (
        "import glob\nfor name in ('report.xml', '/tmp/report.xml', 'junit.xml'):\n"
        "    open(name, 'w').write('<testsuite/>')\ndef add(a, b): return 0"
    ),
    "tests of its own": "def test_a(): pass\ndef test_b(): pass\ndef add(a, b): return 0",
    "pytest's runner": "import _pytest.python\n_pytest.python.Function.runtest = lambda self: None\ndef add(a, b): return 0",
    "pytest's outcomes": (
        "import _pytest.reports as r\nr.TestReport.from_item_and_call = classmethod(lambda cls, item, call: cls("
        "item.nodeid, item.location, {}, 'passed', None, call.when, [], 0, 0, 0))\ndef add(a, b): return 0"
    ),
    "AssertionError": "import builtins\nbuiltins.AssertionError = type('A', (Exception,), {})\ndef add(a, b): return 0",
    "a failing fork": "import os\nif os.fork(): os._exit(0)\ndef add(a, b): return 0",
    "a wrong number of reports": "import os\nos.fork()\ndef add(a, b): return 0",
    "the main module": "import __main__\nfor name in list(vars(__main__)): delattr(__main__, name)\ndef add(a, b): return 0",
}


@pytest.mark.parametrize("trick", CHEATS)
def test_cheating_does_not_pay(trick):
    result = judged(CHEATS[trick])
    assert result.reward == 0.0, result


def test_patching_pytest_is_called_tampering():
    assert judged(CHEATS["pytest's runner"]).status is RewardStatus.TAMPERED
    assert judged(CHEATS["pytest's outcomes"]).status is RewardStatus.TAMPERED


@pytest.mark.parametrize(
    ("solution", "status"),
    [
        ("while True: pass", RewardStatus.TIMEOUT),
        ("import time\ndef add(a, b): time.sleep(600)", RewardStatus.TIMEOUT),
        ("import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(600)", RewardStatus.TIMEOUT),
    ],
)
def test_an_endless_solution_times_out_with_nothing(solution, status):
    begin = time.monotonic()
    result = judged(solution, timeout_s=2.0)
    assert (result.reward, result.status) == (0.0, status)
    assert time.monotonic() - begin < 10


def test_a_fork_bomb_ends():
    result = judged("import os\nwhile True:\n    os.fork()", timeout_s=5.0)
    assert result.reward == 0.0


def test_memory_ends():
    result = judged("x = []\nwhile True:\n    x.append(bytearray(1 << 20))", timeout_s=10.0)
    assert result.reward == 0.0


def test_the_network_and_the_host_are_out_of_reach():
    solution = (
        "import os, socket\ndef add(a, b):\n    assert not os.path.exists('/home') and os.listdir('/work') == ['solution.py']\n"
        "    try: socket.create_connection(('1.1.1.1', 53), 1)\n    except OSError: return a + b\n    return 0"
    )
    assert judged(solution).reward == 1.0


def test_prints_and_forks_of_an_honest_solution_do_not_hurt_it():
    noisy = "import os, multiprocessing\nprint('x' * 5_000_000)\nos.system('echo hi')\n"
    assert judged(noisy + GOOD).reward == 1.0


HONEST = {
    "its own equality": (
        "class P:\n    def __init__(self, x): self.x = x\n"
        "    def __eq__(self, other): return self.x == getattr(other, 'x', other)\n    def __hash__(self): return hash(self.x)\n",
        "from solution import P\ndef test_p():\n    assert P(1) == P(1) and P(1) == 1 and P(1) != 2 and len({P(1), P(1)}) == 1\n",
    ),
    "dataclass": (
        "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\n",
        "from solution import P\ndef test_p():\n    assert P(1) == P(1) != P(2)\n",
    ),
    "exceptions": (
        "class Bad(ValueError): pass\ndef f(x):\n    raise Bad(x)\n",
        "import pytest\nfrom solution import Bad, f\ndef test_f():\n    with pytest.raises(Bad, match='3'): f(3)\n",
    ),
    "parametrize, fixtures, tmp_path, capsys": (
        "def f(x):\n    print(x)\n    return x\n",
        "import pytest\nimport solution\n@pytest.fixture\ndef one(): return 1\n@pytest.mark.parametrize('n', [1, 2])\n"
        "def test_f(n, one, tmp_path, capsys, monkeypatch):\n    (tmp_path / 'a').write_text('x')\n"
        "    assert solution.f(n + one) == n + 1\n    assert capsys.readouterr().out == f'{n + 1}\\n'\n",
    ),
    "unittest": (
        "def f(x): return x\n",
        "import unittest\nfrom solution import f\nclass F(unittest.TestCase):\n"
        "    def test_f(self): self.assertEqual(f([1]), [1])\n    @unittest.skip('later')\n    def test_g(self): f()\n",
    ),
    "a file in the folder": (
        "def f():\n    open('out.txt', 'w').write('1')\n",
        "from pathlib import Path\nfrom solution import f\n"
        "def test_f():\n    f()\n    assert Path('out.txt').read_text() == '1'\n",
    ),
    "marks of the tests": (
        "def f(): return 1\n",
        "import pytest\nfrom solution import f\ndef test_f(): assert f() == 1\n@pytest.mark.skip\ndef test_s(): f(1)\n"
        "@pytest.mark.xfail\ndef test_x(): assert f() == 2\n",
    ),
}


@pytest.mark.parametrize("kind", HONEST)
def test_honest_solutions_of_ordinary_tests_pass(kind):
    solution, tests = HONEST[kind]
    result = judged(solution, tests)
    assert (result.reward, result.status) == (1.0, RewardStatus.PASSED), result.detail


@pytest.mark.parametrize(
    ("tests", "said"),
    [
        ("from solution import add\ndef test_a(:\n", "line 2"),
        ("from solution import add\n", "no test"),
        ("import numpy\nfrom solution import add\ndef test_a(): assert add(1, 1) == 2\n", "numpy"),
        (
            "import pytest\npytest.importorskip('numpy')\nfrom solution import add\ndef test_a(): add(1, 1)\n",
            "skips itself",
        ),
        (
            "import pytest\npytestmark = pytest.mark.skip\nfrom solution import add\ndef test_a(): add(1, 1)\n",
            "skipped",
        ),
    ],
)
@pytest.mark.parametrize("solution", [GOOD, "x = 1\n" + GOOD.replace("+", "-")])
def test_broken_tests_are_the_rows_fault_and_no_zero(solution, tests, said):
    result = judged(solution, tests)
    assert (result.reward, result.status) == (None, RewardStatus.ERROR)
    assert said in result.detail


def test_a_missing_fixture_is_the_rows_fault():
    result = judged(GOOD, "from solution import add\ndef test_a(database): add(1, 1)\n")
    assert (result.reward, result.status) == (None, RewardStatus.ERROR)
    assert "database" in result.detail


def test_a_solution_without_the_function_is_its_own_fault():
    tests = "from solution import add, CASES\nimport pytest\n@pytest.mark.parametrize('a', CASES)\ndef test_a(a): add(a, a)\n"
    assert judged("x = 1", tests).reward == 0.0


def test_a_missing_row_is_no_verdict():
    request = {"grpo_reward_mode": "verification", "reward_timeout_s": 10, "reward_workers": 2}
    with make_rewarder(request) as rewarder:
        results = rewarder.score(
            [RewardItem("p", GOOD, row) for row in ({"tests": TESTS}, {"test": TESTS}, {}, {"tests": 3})]
        )
    assert [r.reward for r in results] == [1.0, 1.0, None, None]


def test_many_tests_fit_into_the_report():
    tests = "import pytest\nfrom solution import add\n@pytest.mark.parametrize('n', range(1000))\n"
    result = judged(
        "def add(a, b):\n    return a + b if a < 500 else None\n", tests + "def test_n(n): assert add(n, 1) == n + 1\n"
    )
    assert result.reward == 0.5
