"""Where two tokenizers are compared: only at the same character of the same answer, token by token."""

import json

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from bashgym.data.alignment import align
from bashgym.data.encode import encode_example
from bashgym.data.tokens import TokenizerBundle
from bashgym.data.types import SftExample

ANSWER = "sort -r notes.txt | head, grüße 你好"


def folder(path, corpus, end, template=None, size=400):
    """A model folder with a byte-level tokenizer that merges what `corpus` repeats."""
    path.mkdir()
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=[end], initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([corpus] * 4, trainer)
    tokenizer.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps({"eos_token": end, "chat_template": template}))
    (path / "config.json").write_text(json.dumps({"vocab_size": size}))
    return TokenizerBundle.load(path)


@pytest.fixture
def coarse(tmp_path):
    return folder(tmp_path / "coarse", "sort -r notes.txt | head sort notes head", "<|end|>")


@pytest.fixture
def fine(tmp_path):
    return folder(tmp_path / "fine", "zz", "</s>", size=260)


def aligned(student, teacher, example, length=512):
    encoded = encode_example(student, example, max_length=length)
    row = align(student, teacher, example, encoded, length)
    ours = [at for at, flag in enumerate(row["aligned"]) if flag]
    theirs = [at for at, flag in enumerate(row["teacher_aligned"]) if flag]
    return encoded, row, ours, theirs


def test_every_compared_pair_has_read_the_same_text(coarse, fine):
    example = SftExample(1, prompt="How?\n", completion=ANSWER)
    for student, teacher in ((coarse, fine), (fine, coarse)):
        encoded, row, ours, theirs = aligned(student, teacher, example)
        assert len(ours) == len(theirs) > 5
        for at, there in zip(ours, theirs, strict=True):
            read = student.decode(encoded.input_ids[: at + 1])
            assert read == teacher.decode(row["teacher_input_ids"][: there + 1])
            assert encoded.labels[at + 1] != -100


def test_the_first_token_of_the_answer_and_its_end_are_compared(coarse, fine):
    encoded, row, ours, theirs = aligned(coarse, fine, SftExample(1, prompt="How?\n", completion=ANSWER))
    assert coarse.decode(encoded.input_ids[: ours[0] + 1]) == "How?\n"
    assert encoded.input_ids[ours[-1] + 1] == coarse.eos_id
    assert row["teacher_input_ids"][theirs[-1] + 1] == fine.eos_id


def test_the_same_tokenizer_is_compared_at_every_trained_token(coarse):
    encoded, _, ours, theirs = aligned(coarse, coarse, SftExample(1, prompt="How?\n", completion="sort -r a | head"))
    assert ours == theirs == [at - 1 for at, label in enumerate(encoded.labels) if label != -100]


def test_different_chat_templates_are_compared_inside_the_answer_only(tmp_path):
    form = "{% for m in messages %}OPEN{{m.content}}CLOSE{% endfor %}{% if add_generation_prompt %}ASK{% endif %}"
    ours_form = form.replace("OPEN", "[{{m.role}}]").replace("CLOSE", "<|end|>").replace("ASK", "[assistant]")
    their_form = form.replace("OPEN", "{{m.role}}: ").replace("CLOSE", "</s>\n").replace("ASK", "assistant: ")
    student = folder(tmp_path / "a", "sort notes", "<|end|>", ours_form)
    teacher = folder(tmp_path / "b", "assistant user", "</s>", their_form)
    example = SftExample(
        1, prompt=[{"role": "user", "content": "How?"}], completion=[{"role": "assistant", "content": ANSWER}]
    )
    encoded, row, ours, theirs = aligned(student, teacher, example)
    assert len(ours) == len(theirs) > 5
    for at, there in zip(ours, theirs, strict=True):
        mine = student.decode(encoded.input_ids[: at + 1]).split("[assistant]")[1]
        other = teacher.decode(row["teacher_input_ids"][: there + 1]).split("assistant: ")[1]
        assert mine == other and ANSWER.startswith(mine)
    assert student.decode(encoded.input_ids[: ours[-1] + 1]).endswith(ANSWER)


def test_what_the_teacher_does_not_see_is_not_compared(coarse, fine):
    example = SftExample(1, prompt="How?\n", completion=ANSWER)
    _, whole, _, all_of_them = aligned(coarse, fine, example)
    encoded = encode_example(coarse, example, max_length=512)
    cut = align(coarse, fine, example, encoded, all_of_them[3] + 1)
    assert sum(cut["aligned"]) == sum(cut["teacher_aligned"]) == 3
    assert len(cut["teacher_input_ids"]) < len(whole["teacher_input_ids"])


def test_an_answer_that_merges_with_the_end_of_its_prompt_is_not_compared_there(coarse, fine):
    example = SftExample(1, prompt="How? ", completion="sort -r")
    encoded, row, ours, theirs = aligned(coarse, fine, example)
    assert coarse.decode(encoded.input_ids[: ours[0] + 1]) == "How? sort"
    assert fine.decode(row["teacher_input_ids"][: theirs[0] + 1]) == "How? sort"
