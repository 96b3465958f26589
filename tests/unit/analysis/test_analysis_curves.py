"""What an analysis says about curves."""

import json
import math
import random

import pytest

from bashgym.core.errors import BashGymError
from bashgym.runs.analysis import analyze
from bashgym.runs.analysis_series import Series, read_metrics


def metrics(tmp_path, rows, name="metrics.jsonl"):
    path = tmp_path / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def curve(name, values, start=1):
    return [{"step": start + i, "ts": 0.0, name: value} for i, value in enumerate(values)]


def found(document):
    return {finding["code"]: finding for finding in document["findings"]}


def judge(tmp_path, rows):
    return found(analyze(metrics_path=metrics(tmp_path, rows)))


def falling(n=50, noise=0.0, seed=1):
    rng = random.Random(seed)
    return [3.0 * math.exp(-4 * i / n) + 0.5 + rng.uniform(-noise, noise) for i in range(n)]


def test_a_good_curve_raises_no_objection(tmp_path):
    rows = [{**row, "grad_norm": 1.0, "eval_loss": row["loss"] + 0.05} for row in curve("loss", falling(noise=0.1))]
    document = analyze(metrics_path=metrics(tmp_path, rows))
    assert {f["severity"] for f in document["findings"]} <= {"info", "missing"}
    assert document["verdict"]["level"] == "insufficient_evidence" and document["ok"] is True


@pytest.mark.parametrize("written", ['null, "non_finite": {"grad_norm": "NaN"}', "NaN", "Infinity", "-Infinity"])
def test_the_first_value_that_is_no_number_is_named(tmp_path, written):
    path = metrics(tmp_path, curve("grad_norm", [1.0] * 9))
    with path.open("a") as out:
        out.write('{"step": 10, "loss": 1.0, "grad_norm": ' + written + "}\n")
    document = analyze(metrics_path=path)
    finding = found(document)["non_finite_values"]
    assert finding["severity"] == "blocker" and "grad_norm" in finding["message"] and "step 10" in finding["message"]
    assert "precision" in finding["next"] and "masked" in finding["next"] and "attention" in finding["next"]
    assert document["verdict"]["level"] == "blocked"


def test_zero_loss_with_nan_gradients_is_not_success(tmp_path):
    log = [
        {"step": step, "epoch": step / 100, "loss": loss, "grad_norm": math.nan, "learning_rate": 1e-4}
        for step, loss in ((10, 9021.5), (20, 0.0), (30, 0.0))
    ]
    path = tmp_path / "trainer_state.json"
    path.write_text(json.dumps({"log_history": [*log, {"step": 30, "train_loss": 3007.2, "train_runtime": 9.0}]}))
    document = analyze(metrics_path=path)
    codes = found(document)
    assert "nan" in codes["non_finite_values"]["message"] and "step 10" in codes["non_finite_values"]["message"]
    assert codes["loss_zero"]["severity"] == "blocker" and "step 20" in codes["loss_zero"]["message"]
    assert document["verdict"]["summary"]["blocked"]


def test_the_trainers_closing_average_is_no_point(tmp_path):
    rows = [*curve("loss", [3.0, 2.0, 1.0]), {"step": 3, "train_loss": 2.0, "train_runtime": 1.0}]
    assert analyze(metrics_path=metrics(tmp_path, rows))["training_metrics"]["series"]["loss"]["last"] == 1.0


def test_a_value_taken_back_after_a_resume_does_not_count(tmp_path):
    rows = [
        *curve("loss", [3.0, 2.0]),
        {"step": 3, "loss": None, "non_finite": {"loss": "NaN"}},
        *curve("loss", [1.9, 1.8], start=2),
    ]
    document = analyze(metrics_path=metrics(tmp_path, rows))
    assert "non_finite_values" not in found(document)
    assert document["training_metrics"]["series"]["loss"] == {
        "count": 3, "first": 3.0, "last": 1.8, "min": 1.8, "max": 3.0, "delta": pytest.approx(-1.2)
    }  # fmt: skip


def test_one_noisy_last_point_is_no_increase(tmp_path):
    assert "loss_increased" not in judge(tmp_path, curve("loss", [*falling(), 4.0]))


def test_a_rising_loss_is_an_increase_although_the_last_point_is_low(tmp_path):
    assert "loss_increased" in judge(tmp_path, curve("loss", [*[1 + i / 20 for i in range(40)], 0.5]))


def test_divergence_late_in_a_run(tmp_path):
    rise = [0.6 + 0.1 * i for i in range(15)]
    assert judge(tmp_path, curve("loss", falling() + rise))["loss_diverged"]["severity"] == "warning"
    assert judge(tmp_path, curve("loss", falling() + [9.0] * 30))["loss_diverged"]["severity"] == "blocker"


def test_a_loss_that_never_moves_is_flat(tmp_path):
    rng = random.Random(0)
    assert "loss_flat" in judge(tmp_path, curve("loss", [2.0 + rng.uniform(-0.01, 0.01) for _ in range(50)]))
    assert "loss_flat" not in judge(tmp_path, curve("loss", falling()))


def test_a_plateau_is_only_told(tmp_path):
    rows = curve("loss", falling(30) + [0.55] * 60)
    assert judge(tmp_path, rows)["loss_plateau"]["severity"] == "info"


def test_gradient_spikes_name_the_step(tmp_path):
    values = [1.0] * 30
    values[17] = 10.1
    assert judge(tmp_path, curve("grad_norm", values))["gradient_spikes"]["evidence"]["steps"] == [18]
    values[17] = 9.9
    assert "gradient_spikes" not in judge(tmp_path, curve("grad_norm", values))


def test_gradients_of_zero_train_nothing(tmp_path):
    assert judge(tmp_path, curve("grad_norm", [0.0] * 10))["gradient_vanished"]["severity"] == "blocker"
    assert judge(tmp_path, curve("grad_norm", [1.0] * 40 + [0.0] * 10))["gradient_vanished"]["severity"] == "warning"


def test_eval_loss_that_turns_up(tmp_path):
    rows = curve("loss", falling()) + [{"step": 100 + i, "eval_loss": v} for i, v in enumerate([1.0, 0.8, 0.9])]
    assert judge(tmp_path, rows)["eval_loss_rising"]["evidence"]["best_step"] == 101
    rows[-1]["eval_loss"] = 0.81
    assert "eval_loss_rising" not in judge(tmp_path, rows)


def test_a_gap_between_eval_and_training(tmp_path):
    rows = [*curve("loss", falling()), {"step": 60, "eval_loss": 2.0}]
    assert "eval_train_gap" in judge(tmp_path, rows)
    rows[-1]["eval_loss"] = 0.6
    assert "eval_train_gap" not in judge(tmp_path, rows)


def test_no_eval_loss_is_told(tmp_path):
    assert judge(tmp_path, curve("loss", falling()))["no_eval_loss"]["severity"] == "info"


def test_speed_that_breaks_down(tmp_path):
    assert "throughput_regression" in judge(tmp_path, curve("tokens_per_second", [900.0] * 40 + [400.0] * 10))
    assert "throughput_regression" not in judge(tmp_path, curve("tokens_per_second", [900.0] * 40 + [500.0] * 10))


def test_a_policy_gradient_loss_is_not_judged_by_its_trend(tmp_path):
    rows = [{**row, "reward": 0.5, "reward_std": 0.1} for row in curve("loss", [0.0, 0.0, 0.1, 0.2, 0.3])]
    assert not {"loss_increased", "loss_zero", "loss_diverged"} & judge(tmp_path, rows).keys()


# -- reading ---------------------------------------------------------------------------------------------------------


def test_torn_lines_are_counted_and_left_out(tmp_path):
    path = metrics(tmp_path, curve("loss", [2.0, 1.0]))
    with path.open("ab") as out:
        out.write(b'\0\0\0\n[1]\n{"loss": 3}\n{"step": true}\n' + b'{"step": 3, "loss": 9.')
    document = analyze(metrics_path=path)
    assert document["training_metrics"]["skipped_lines"] == 5 and document["training_metrics"]["points"] == 2
    assert found(document)["metrics_lines_skipped"]["severity"] == "info"


def test_a_huge_line_is_passed_over(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1, "x": "' + b"a" * (3 << 20) + b'"}\n{"step": 2, "loss": 1.0}\n')
    found_ = read_metrics(path)
    assert (found_.points, found_.skipped, found_.last("loss")) == (1, 1, 1.0)


def test_an_empty_file_is_missing_evidence(tmp_path):
    document = analyze(metrics_path=metrics(tmp_path, []))
    assert found(document)["no_metrics"]["severity"] == "missing"
    assert document["verdict"]["level"] == "insufficient_evidence"


def test_what_is_not_there_is_an_error(tmp_path):
    for call, code in (
        ({"metrics_path": tmp_path / "no.jsonl"}, "file_missing"),
        ({"run_dir": tmp_path / "run_none"}, "run_not_found"),
        ({}, "usage"),
    ):
        with pytest.raises(BashGymError) as caught:
            analyze(**call)
        assert caught.value.code == code


def test_a_json_file_without_a_log_is_refused(tmp_path):
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(BashGymError) as caught:
        analyze(metrics_path=tmp_path / "x.json")
    assert caught.value.code == "file_unreadable"


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("train_loss", "loss"),
        ("train_reward_mean", "reward"),
        ("rewardStd", "reward_std"),
        ("fracRewardZeroStd", "frac_reward_zero_std"),
        ("pass@1", "pass_at_1"),
        ("heldout_pass@1", "pass_at_1"),
        ("timeoutRate", "timeout_rate"),
        ("tamperRate", "tamper_rate"),
        ("verifierErrorRate", "verifier_error_rate"),
        ("echoLoss", "echo_loss"),
        ("rwmlPassRate", "rwml_pass_rate"),
        ("rwml_embedding_distance_mean", "embedding_distance_mean"),
        ("kl_divergence", "kl"),
        ("approx_kl", "kl"),
        ("mean_kl", "kl"),
        ("dpo_accuracy", "preference_accuracy"),
        ("rewards/accuracies", "preference_accuracy"),
        ("rewards/margins", "reward_margin"),
        ("chosen_reward_margin", "reward_margin"),
        ("session_distillation_kl", "session_distillation_kl"),
        ("command_count", "tool_calls"),
        ("throughput_tokens_per_sec", "tokens_per_second"),
        ("gpu_memory_gb", "peak_memory_gb"),
        ("ooms", "oom_count"),
    ],
)
def test_every_known_spelling_is_read(tmp_path, spelling, name):
    series = analyze(metrics_path=metrics(tmp_path, [{"step": 1, spelling: 1.5}]))["training_metrics"]["series"]
    assert series[name]["last"] == 1.5


def test_the_methods_own_spelling_wins(tmp_path):
    rows = [{"step": i, "loss": 1.0, "train_loss": 9.0} for i in range(3)]
    assert read_metrics(metrics(tmp_path, rows)).last("loss") == 1.0


def test_a_long_series_keeps_its_extremes_in_bounded_memory():
    series, n = Series(), 50_000
    for step in range(n):
        series.add(step, 100.0 if step == 31_234 else step / n)
    assert len(series.buckets) <= 2049
    assert series.summary() == {
        "count": n, "first": 0.0, "last": (n - 1) / n, "min": 0.0, "max": 100.0, "delta": (n - 1) / n
    }  # fmt: skip
    assert max(series.buckets, key=lambda bucket: bucket.high).high_step == 31_234
    assert series.head() == pytest.approx(0.1, abs=0.01) and series.best() == pytest.approx(0.1, abs=0.01)


def test_a_file_with_endless_names_stays_bounded(tmp_path):
    rows = [{"step": i, f"metric_{i}": 1.0, "loss": 1.0} for i in range(1000)]
    assert len(read_metrics(metrics(tmp_path, rows)).series) <= 512
