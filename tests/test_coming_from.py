"""docs/coming-from.md: its keys exist, and the flags that people come with stand on it."""

import re
from pathlib import Path

import pytest

from tasks.params.strict_yaml import leaves, read_yaml

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "coming-from.md").read_text(encoding="utf-8")
PARAMS = read_yaml(ROOT / "params.yaml")

COMMANDS = {
    # command lines and Python arguments of the texts that the project grew from
    "Hugging Face's post, run_qa.py": """ipu_config_name model_name_or_path dataset_name do_train do_eval output_dir
        overwrite_output_dir per_device_train_batch_size per_device_eval_batch_size learning_rate num_train_epochs
        max_seq_length doc_stride seed lr_scheduler_type loss_scaling weight_decay warmup_ratio""",
    "Graphcore's notebook, IPUTrainingArguments": """output_dir do_train do_eval per_device_train_batch_size
        per_device_eval_batch_size gradient_accumulation_steps learning_rate num_train_epochs logging_steps
        dataloader_num_workers dataloader_drop_last resume_from_checkpoint pod_type save_steps report_to
        push_to_hub use_auth_token force-reinstall""",
    "the README of the TensorFlow 2 BERT": """sequence-length mask-tokens pretrained-ckpt-path dataset-dir wandb
        wandb-name name help python""",
    "the model card of Graphcore/bert-base-uncased, run_pretraining.py": """config_name tokenizer_name ipu_config_name
        dataset_name do_train logging_steps max_seq_length max_steps is_already_preprocessed dataloader_num_workers
        dataloader_mode lamb lamb_no_bias_correction per_device_train_batch_size gradient_accumulation_steps
        learning_rate lr_scheduler_type loss_scaling weight_decay warmup_ratio save_steps config_overrides
        ipu_config_overrides output_dir model_name_or_path""",
    "the same card, run_glue.py": """model_name_or_path ipu_config_name task_name do_train do_eval max_seq_length
        per_device_train_batch_size per_device_eval_batch_size gradient_accumulation_steps pod_type learning_rate
        lr_scheduler_type warmup_ratio num_train_epochs seed save_steps dataloader_num_workers dataloader_drop_last
        overwrite_output_dir output_dir""",
    "Paddle's post": """input_dir max_seq_length max_predictions_per_seq ulimit net cap-add device ipc size build config
        target create-dirs""",
    # the parsers of the scripts themselves
    "Graphcore PyTorch, args.py": """micro-batch-size training-steps device-iterations replication-factor
        gradient-accumulation embedding-serialization-factor recompute-checkpoint-every-layer enable-half-partials
        optimizer-state-offchip replicated-tensor-sharding ipus-per-replica layers-per-ipu matmul-proportion
        async-dataloader random-seed num-epochs optimizer learning-rate lr-schedule lr-warmup auto-loss-scaling
        loss-scaling weight-decay enable-half-first-order-momentum squad-do-training squad-do-validation
        sequence-length mask-tokens vocab-size hidden-size intermediate-size num-hidden-layers num-attention-heads
        layer-norm-eps attention-probs-dropout-prob input-files dataset synthetic-data squad-v2 packed-data
        packing-factor max-sequences-per-pack dataloader-workers profile-dir custom-ops wandb wandb-param-steps
        disable-progress-bar compile-only executable-cache-dir checkpoint-output-dir checkpoint-steps
        resume-training-from-checkpoint pretrained-checkpoint config""",
    "Graphcore TensorFlow 2, utilities/argparser.py": """config dataset-dir save-ckpt-path pretrained-ckpt-path
        total-num-train-samples global-batch.replicas global-batch.micro-batch-size
        global-batch.grad-acc-steps-per-replica
        ipu-config.matmul-available-memory-proportion-per-pipeline-stage name logging enable-wandb
        generated-dataset compile-only do-training do-validation do-test""",
    "Paddle, static_ipu/utils.py": """task input_files output_dir is_training seq_len vocab_size
        max_predictions_per_seq max_position_embeddings num_hidden_layers hidden_size ignore_index hidden_dropout_prob
        attention_probs_dropout_prob learning_rate weight_decay beta1 beta2 adam_epsilon max_steps warmup_steps
        scale_loss accl1_type accl2_type weight_decay_mode optimizer_state_offchip logging_steps save_steps epochs
        batch_size micro_batch_size batches_per_step seed num_ipus ipu_enable_fp16 num_replica enable_grad_acc
        grad_acc_factor available_mem_proportion shuffle wandb enable_load_params load_params_path tf_checkpoint
        enable_engine_caching""",
    "NVIDIA, run_pretraining.sh and run_squad.sh": """input_dir output_dir config_file bert_model train_batch_size
        max_seq_length max_predictions_per_seq max_steps warmup_proportion num_steps_per_checkpoint learning_rate seed
        fp16 gradient_accumulation_steps resume_from_checkpoint allreduce_post_accumulation
        allreduce_post_accumulation_fp16 accumulate_into_fp16 do_train phase2 phase1_end_step init_checkpoint
        train_file do_predict predict_file predict_batch_size do_lower_case num_train_epochs doc_stride vocab_file
        nproc_per_node checkpoint_activations""",
}
"""Where flags are from -> the flags, without their hyphens."""


@pytest.mark.parametrize("source", COMMANDS)
def test_every_flag_of_a_command_line_stands_on_the_page(source: str):
    found = set(re.findall(r"--([\w.-]+)", PAGE))
    assert [flag for flag in COMMANDS[source].split() if flag not in found] == []


def test_every_key_on_the_page_exists():
    known = {name for name, _ in leaves(PARAMS)}
    cells = [row.split("|")[2] for row in PAGE.splitlines() if row.startswith("| ")]
    named = {key for cell in cells for key in re.findall(r"`([a-z_]+(?:\.[a-z0-9_]+)+)`", cell)}
    assert len(named) > 80
    assert [key for key in sorted(named) if not any(key == name or _inside(key, name) for name in known)] == []


EXISTING = """max_train_samples max_eval_samples version_2_with_negative squad-v2 null_score_diff_threshold
    checkpoint_activations"""
"""Flags of features that Podium also has, under another name."""


@pytest.mark.parametrize("flag", EXISTING.split())
def test_what_there_is_is_not_denied(flag: str):
    rows = [row.split("|") for row in PAGE.splitlines() if row.startswith("| ") and f"`--{flag}`" in row.split("|")[1]]
    assert rows
    assert [flags for _, flags, key, *_ in rows if "not supported" in key] == []


def test_the_readme_counts_the_presets_that_there_are():
    heads = {path.stem: read_yaml(path) for path in (ROOT / "presets").glob("*.yaml")}
    published = {name for name, values in heads.items() if values.get("source")}
    ours = {name for name in published if name.endswith("-fast")}
    ported = re.compile(r"hyperparameters of .*(for IPUs|IPU recipe)")
    carried = {name for name in published if ported.search(heads[name]["description"])}
    assert f"{len(published - ours - carried)} published recipes of Optimum Graphcore" in " ".join(
        (ROOT / "README.md").read_text(encoding="utf-8").split()
    )


def _inside(key: str, name: str) -> bool:
    """Whether `key` is a section, or a key of an IPU mapping, which is null in params.yaml."""
    return name.startswith(f"{key}.") or (".ipu." in f".{name}" and key.startswith(f"{name}."))
