"""Which endpoints may be talked to, and what of them may be written down."""

import msgspec
import pytest

from bashgym.core.errors import BashGymError
from bashgym.inference.endpoint import EndpointSpec, check_endpoint, endpoint_facts

KEY = "sk-test-0123456789"


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000/v1"),
        ("http://localhost:11434/v1/", "http://localhost:11434/v1"),
        ("http://[::1]:8000/v1", "http://[::1]:8000/v1"),
        ("http://192.168.1.20:8000/v1", "http://192.168.1.20:8000/v1"),
        ("http://10.0.0.1/v1", "http://10.0.0.1/v1"),
        ("http://vllm:8000/v1", "http://vllm:8000/v1"),
        ("http://gpu.local:8000/v1", "http://gpu.local:8000/v1"),
        ("https://api.openai.com/v1", "https://api.openai.com/v1"),
        ("https://example.com/openai/v1/chat/completions", "https://example.com/openai/v1"),
    ],
)
def test_an_acceptable_address(url, base):
    assert check_endpoint(EndpointSpec(base_url=url)).base == base


@pytest.mark.parametrize(
    "url",
    [
        "",
        "api.openai.com/v1",
        "ftp://127.0.0.1/v1",
        "file:///etc/passwd",
        "http://api.openai.com/v1",
        "http://8.8.8.8/v1",
        "http://evil.com.local.example.org/v1",
        "http://169.254.169.254/latest",
        "https://169.254.169.254/latest",
        "https://[::ffff:169.254.169.254]/latest",
        "http://[::ffff:8.8.8.8]/v1",
        "http://134744072/v1",
        "https://0xa9.0xfe.0xa9.0xfe/v1",
        "http://0251.0376.0251.0376/v1",
        f"https://user:{KEY}@example.com/v1",
        f"https://example.com/v1?key={KEY}",
        "https://example.com/v1#part",
        "https://example.com/v1\r\nX: y",
        "https://exam ple.com",
        "https://example.com:99999/v1",
        "https://[::1/v1",
        "https:///v1",
        "https://example.com\\@127.0.0.1/",
        "https://" + "a" * 3000,
    ],
)
def test_a_refused_address_is_not_repeated(url):
    with pytest.raises(BashGymError) as caught:
        check_endpoint(EndpointSpec(base_url=url))
    assert caught.value.code == "endpoint_invalid" and caught.value.fields == ["base_url"]
    assert KEY not in str(caught.value.detail())


@pytest.mark.parametrize("key", ["", "a b", "a\r\nX-Evil: 1", "ключ", "a" * 5000])
def test_a_key_that_no_header_can_carry_is_refused(key):
    with pytest.raises(BashGymError, match="API key") as caught:
        check_endpoint(EndpointSpec(base_url="http://127.0.0.1:1", api_key=key))
    assert caught.value.code == "endpoint_invalid" and (not key or key not in str(caught.value.detail()))


def test_an_unknown_provider_or_model_name_is_refused():
    for change in ({"provider": "azure"}, {"model": "a\nb"}):
        with pytest.raises(BashGymError) as caught:
            check_endpoint(EndpointSpec(base_url="http://127.0.0.1:1", **change))
        assert caught.value.fields == list(change)


def test_facts_bind_what_decides_the_answers_and_hold_no_key():
    base = {"base_url": "http://127.0.0.1:8000", "model": "m"}
    facts = endpoint_facts(EndpointSpec(**base, api_key=KEY))
    assert facts == endpoint_facts(EndpointSpec(**{**base, "base_url": "http://127.0.0.1:8000/v1/"}))
    assert KEY not in str(facts) and KEY not in repr(EndpointSpec(**base, api_key=KEY))
    others = [{"model": "n"}, {"provider": "vllm"}, {"base_url": "http://127.0.0.1:8001"}]
    digests = {endpoint_facts(EndpointSpec(**{**base, **change}))["digest"] for change in others}
    assert len(digests | {facts["digest"]}) == 4


def test_an_unknown_field_is_refused():
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"base_url": "http://127.0.0.1", "apikey": "x"}, EndpointSpec)
