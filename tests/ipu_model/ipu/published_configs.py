"""The ipu_config.json files that Graphcore published, key by key, as plain values.

BERT_LARGE_IPU is the file as a notebook of Graphcore's prints it, with every key its release wrote (its override of
the cache folder left out); BERT_BASE_IPU has the same keys with the published values of the base model. The others
were saved with the pre-trained models of the same names by older releases.
"""

from __future__ import annotations

PER_POD = {"default": 1, "pod4": 1, "pod8": 2, "pod16": 4, "pod32": 8, "pod64": 16}

BERT_BASE_IPU = {
    "decompose_grad_sum": False,
    "device_iterations": 1,
    "embedding_serialization_factor": 1,
    "enable_half_first_order_momentum": True,
    "enable_half_partials": True,
    "executable_cache_dir": "",
    "execute_encoder_on_cpu_for_generation": False,
    "gradient_accumulation_steps": 16,
    "inference_device_iterations": 5,
    "inference_replication_factor": PER_POD,
    "ipus_per_replica": 4,
    "layers_per_ipu": [0, 4, 4, 4],
    "matmul_proportion": 0.25,
    "optimizer_state_offchip": False,
    "optimum_version": "1.3.0",
    "output_mode": "final",
    "profile_dir": "",
    "recompute_checkpoint_every_layer": True,
    "replicated_tensor_sharding": True,
    "replication_factor": PER_POD,
    "seed": None,
    "sharded_execution_for_inference": False,
    "transformers_version": "4.20.1",
    "use_popdist": False,
}
BERT_LARGE_IPU = {
    **BERT_BASE_IPU,
    "embedding_serialization_factor": 2,
    "inference_device_iterations": 4,
    "layers_per_ipu": [3, 7, 7, 7],
    "matmul_proportion": [0.15, 0.18, 0.2, 0.25],
    "optimizer_state_offchip": True,
}
BERT_BASE_UNCASED = {
    "device_iterations": 1,
    "embedding_serialization_factor": 2,
    "enable_half_first_order_momentum": True,
    "enable_half_partials": True,
    "executable_cache_dir": "./exe_cache",
    "gradient_accumulation_steps": 512,
    "inference_device_iterations": 4,
    "inference_replication_factor": 4,
    "ipus_per_replica": 4,
    "layers_per_ipu": [0, 4, 4, 4],
    "matmul_proportion": 0.22,
    "optimizer_state_offchip": False,
    "optimum_version": "0.1.2",
    "output_mode": "final",
    "recompute_checkpoint_every_layer": True,
    "replicated_tensor_sharding": True,
    "replication_factor": 4,
    "seed": 42,
}
BERT_LARGE_UNCASED = {
    **BERT_BASE_UNCASED,
    "inference_replication_factor": 16,
    "layers_per_ipu": [3, 7, 7, 7],
    "matmul_proportion": [0.1, 0.15, 0.15, 0.15],
    "optimizer_state_offchip": True,
    "optimum_version": "1.0.0",
    "replication_factor": 16,
}
