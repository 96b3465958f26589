"""What preflight counts for the tools protocol is what TRL shows the model."""

from transformers import AutoTokenizer
from transformers.utils import get_json_schema

from bashgym.data.grpo_checks import BASH_TOOL, shown_prompt
from bashgym.data.tokens import TokenizerBundle
from bashgym.envs.rewards.tools import BashEnvironment
from bashgym.models.catalog import resolve

from .conftest import TINY


def test_the_announced_tool_is_the_method_as_transformers_reads_it():
    assert get_json_schema(BashEnvironment.bash) == BASH_TOOL


def test_a_prompt_with_the_tool_has_the_same_tokens(workspace):
    folder, turns = resolve(TINY, workspace.settings).path, [{"role": "user", "content": "List the files."}]
    bundle, theirs = TokenizerBundle.load(folder), AutoTokenizer.from_pretrained(folder)
    ids = theirs.apply_chat_template(turns, tools=[BashEnvironment.bash], add_generation_prompt=True, return_dict=False)
    assert bundle.encode(shown_prompt(bundle, turns, [BASH_TOOL])) == ids
