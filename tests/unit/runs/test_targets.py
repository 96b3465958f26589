import pytest

from bashgym.core.errors import BashGymError
from bashgym.runs.targets import normalise_target


@pytest.mark.parametrize("request_", [{}, {"compute_target": "local"}, {"compute_target": None}])
def test_local(request_):
    assert normalise_target(request_) == "local"


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        ({"compute_target": "cloud"}, "target_ambiguous"),
        ({"compute_target": "hf-jobs"}, "target_other_surface"),
        ({"compute_target": "managed:openai"}, "target_other_surface"),
        ({"compute_target": "skypilot_a10g"}, "target_other_surface"),
        ({"compute_target": "dstack_a10g"}, "target_other_surface"),
        ({"compute_target": "ssh:box"}, "target_unavailable"),
        ({"compute_target": "ssh:"}, "target_unavailable"),
        ({"compute_target": "ssh:box", "device_id": "other"}, "target_ambiguous"),
        ({"compute_target": "local", "use_remote_ssh": True}, "target_ambiguous"),
        ({"use_remote_ssh": True, "use_nemo_customizer": True}, "target_ambiguous"),
        ({"use_remote_ssh": True}, "target_unavailable"),
        ({"use_nemo_gym": True}, "target_unavailable"),
        ({"compute_target": "nemo", "use_remote_ssh": True}, "target_ambiguous"),
        ({"compute_target": "moon"}, "target_unavailable"),
    ],
)
def test_every_other_target_is_refused_by_type(request_, code):
    with pytest.raises(BashGymError) as caught:
        normalise_target(request_)
    assert caught.value.code == code and caught.value.fields == ["compute_target"]
