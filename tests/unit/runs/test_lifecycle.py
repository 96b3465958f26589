import pytest
from hypothesis import given
from hypothesis import strategies as st

from bashgym.core.errors import BashGymError
from bashgym.runs.lifecycle import TRANSITIONS, check_transition
from bashgym.store.run_dir import TERMINAL, RunStatus

STATUS = st.sampled_from(list(RunStatus))


@given(STATUS, STATUS)
def test_only_the_table_decides(current, wanted):
    allowed = wanted == current or wanted in TRANSITIONS[current]
    try:
        check_transition("run_x", current, wanted)
    except BashGymError as error:
        assert not allowed
        assert error.code == ("run_finished" if current in TERMINAL else "invalid_transition")
    else:
        assert allowed


def test_the_ends_are_final_and_every_state_has_a_row():
    assert set(TRANSITIONS) == set(RunStatus)
    assert all(not TRANSITIONS[end] for end in TERMINAL)


@pytest.mark.parametrize("start", [s for s in RunStatus if s not in TERMINAL])
def test_every_live_state_can_reach_an_end(start):
    seen, todo = set(), [start]
    while todo:
        state = todo.pop()
        if state not in seen:
            seen.add(state)
            todo += TRANSITIONS[state]
    assert RunStatus.CANCELLED in seen and RunStatus.FAILED in seen
