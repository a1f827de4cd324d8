"""How every IPU preset lays a BERT over IPUs, written down a second time and not read from the presets."""

from tests.optimizers import optimizer_config

OPTIMIZERS = {
    "lamb": {"first_moment_precision": "fp32"},
    "lamb-uncorrected": {"first_moment_precision": "fp32", "bias_correction": False},
    "lamb-optimum": {"bias_correction": False, "eps": 1e-8},
    "adamw": {},
    "adamw-optimum": {"eps": 1e-8},
    "adamw-raw": {"eps": 1e-8, "weight_decay": 0.0},
    "adamw-paddle": {"first_moment_precision": "fp32", "weight_decay": 0.0},
}
"""The first of each kind is of Graphcore's examples; the rate is a variable and does not change the layout."""


class Layout:
    """A line of a table for one of its jobs.

    It has presets without "ipu-" (+ = the first, and more); layers, replicas, and matmul_proportion, of all IPUs or of
    each; in training the optimizer with its loss scaling; xN = embedding_serialization_factor; @N = device iterations;
    head-on-0 = a question answering head with a stage of its own, on IPU 0; and what is on.
    """

    def __init__(self, job, line):
        presets, layers, replicas, memory, *words = line.split()
        first = presets.split(",")[0]
        self.job, self.presets, self.name = job, presets.replace("+", first).split(","), f"{job}-{first}"
        self.head = "pretraining" if job.startswith("phase") else "question_answering"
        self.training = job != "predict"
        self.layers, self.replicas = [int(count) for count in layers.split(",")], int(replicas)
        self.memory = [float(share) for share in memory.split(",")]
        self.optimizer = None
        if self.training:
            optimizer, _, scaling = words[0].partition(":")
            changes = OPTIMIZERS[optimizer]
            self.optimizer = optimizer_config(optimizer.split("-")[0], loss_scaling=float(scaling), **changes)
        numbers = {word[0]: int(word[1:]) for word in words if word[0] in "x@"}
        self.factor, self.iterations = numbers.get("x", 1), numbers.get("@", 1)
        self.head_on = 0 if "head-on-0" in words else None
        self.offchip, self.sharded = "offchip" in words, "sharded" in words
        self.auto_loss_scaling = "auto_loss_scaling" in words

    @property
    def table_pieces(self):
        """Parameters of the word table: tied to the decoder, or trained by LAMB, it stays one."""
        whole = self.head == "pretraining" or (self.training and self.optimizer.name == "lamb")
        return 1 if whole else self.factor

    def ipu_config(self):
        """The keys that a preset states for this job."""
        mode = "" if self.training else "inference_"
        memory = self.memory if len(self.memory) > 1 else self.memory[0]
        config = {f"{mode}replication_factor": self.replicas, f"{mode}matmul_proportion": memory}
        if self.head_on is None:
            config[f"{mode}layers_per_ipu"] = self.layers
        else:
            stages = [["hid"] * count for count in self.layers]
            stages[0].insert(0, "emb")
            if sum(self.layers) == 24:  # the large files name what has no block of its own
                stages[-1] += ["enc_out", "pool"]
            config.update(pipeline_stages=[*stages, ["qa_head"]], device_mapping=[0, 1, 2, 3, self.head_on])
        if self.factor != 1:
            config["embedding_serialization_factor"] = self.factor
        if self.job == "finetune" or not self.training:
            config[f"{mode}device_iterations"] = self.iterations
        if not self.training:
            return config
        if self.auto_loss_scaling:
            config["auto_loss_scaling"] = True
        config.update(optimizer_state_offchip=self.offchip, replicated_tensor_sharding=self.sharded)
        return {**config, "recompute_checkpoint_every_layer": True}


EXAMPLES = ",".join(f"large-{pod}-examples{kind}" for pod in ("pod16", "pod64") for kind in ("", "-als", "-packed"))
"""One SQuAD recipe after every pre-training."""
TABLES = {
    "phase1": """
base-pod16-examples 0,4,4,4 4 0.25 lamb-uncorrected:16384 offchip sharded
base-pod16-optimum 0,4,4,4 4 0.25 lamb-optimum:16384 sharded
base-pod16-paddle 0,4,4,4 4 0.28 lamb-uncorrected:512 offchip
base-pod16-tf2-384,base-pod16-tf2-512 0,4,4,4 4 0.28,0.26,0.28,0.28 lamb:4096 x2 offchip
base-pod4-examples 0,4,4,4 1 0.25 lamb-uncorrected:16384 offchip sharded
base-pod4-tf2-384,base-pod4-tf2-512 0,4,4,4 1 0.28,0.26,0.28,0.28 lamb:4096 x2 offchip
large-pod16-examples,+-8ipu,+-packed 3,7,7,7 4 0.15,0.25,0.25,0.25 lamb:4096 x2 offchip sharded
large-pod16-examples-als 3,7,7,7 4 0.13,0.2,0.2,0.2 lamb:1 x2 offchip sharded auto_loss_scaling
large-pod16-optimum 3,7,7,7 4 0.14,0.19,0.19,0.19 lamb-optimum:32768 x2 offchip sharded
large-pod16-tf2-384,large-pod16-tf2-512 3,7,7,7 4 0.1,0.19,0.2,0.25 lamb:32768 x2 offchip
large-pod4-examples,+-packed 3,7,7,7 1 0.15,0.25,0.25,0.25 lamb:4096 x2 offchip sharded
large-pod4-tf2-384,large-pod4-tf2-512 3,7,7,7 1 0.1,0.19,0.2,0.25 lamb:32768 x2 offchip
large-pod64-examples-als 3,7,7,7 16 0.05,0.13,0.13,0.13 lamb:1 x6 offchip sharded auto_loss_scaling
large-pod64-examples,+-packed 3,7,7,7 16 0.14,0.19,0.19,0.19 lamb:32768 x2 offchip sharded
large-pod64-optimum 3,7,7,7 16 0.14,0.19,0.19,0.19 lamb-optimum:32768 x2 offchip sharded
large-pod64-tf2-384 3,7,7,7 16 0.1,0.19,0.2,0.2 lamb:32768 x6 offchip sharded
""",
    "phase2": """
base-pod16-examples 0,4,4,4 4 0.25 lamb-uncorrected:128 x2 offchip sharded
base-pod16-optimum 0,4,4,4 4 0.22 lamb-optimum:128 x2 sharded
base-pod16-paddle 0,4,4,4 4 0.28 lamb-uncorrected:128 offchip
base-pod16-tf2-384 0,4,4,4 4 0.28,0.26,0.28,0.28 lamb:4096 x2 offchip
base-pod16-tf2-512 0,4,4,4 4 0.2,0.2,0.2,0.2 lamb:4096 x2 offchip
base-pod4-examples 0,4,4,4 1 0.25 lamb-uncorrected:128 x2 offchip sharded
base-pod4-tf2-384 0,4,4,4 1 0.28,0.26,0.28,0.28 lamb:4096 x2 offchip
base-pod4-tf2-512 0,4,4,4 1 0.2,0.2,0.2,0.2 lamb:4096 x2 offchip
large-pod16-examples,+-8ipu,+-als,+-packed 3,7,7,7 4 0.1,0.15,0.15,0.15 lamb:8192 x2 offchip sharded
large-pod16-optimum 3,7,7,7 4 0.14,0.19,0.19,0.19 lamb-optimum:16384 x2 offchip sharded
large-pod16-tf2-384 3,7,7,7 4 0.15,0.28,0.4,0.4 lamb:32768 x2 offchip
large-pod16-tf2-512 2,7,7,8 4 0.05,0.1,0.1,0.1 lamb:32768 x2 offchip
large-pod4-examples,+-packed 3,7,7,7 1 0.1,0.15,0.15,0.15 lamb:8192 x2 offchip sharded
large-pod4-tf2-384 3,7,7,7 1 0.15,0.28,0.4,0.4 lamb:32768 x2 offchip
large-pod4-tf2-512 2,7,7,8 1 0.05,0.1,0.1,0.1 lamb:32768 x2 offchip
large-pod64-examples,+-als,+-packed 3,7,7,7 16 0.13,0.19,0.19,0.19 lamb:16384 x2 offchip sharded
large-pod64-optimum 3,7,7,7 16 0.14,0.19,0.19,0.19 lamb-optimum:16384 x2 offchip sharded
large-pod64-tf2-384 3,7,7,7 16 0.15,0.2,0.2,0.25 lamb:32768 x6 offchip
""",
    "finetune": f"""
base-pod16-examples 0,4,4,4 4 0.25 adamw:64 sharded @2
base-pod4-optimum-packed 0,4,4,4 1 0.22 adamw-optimum:64 sharded @32
base-pod16-optimum,base-pod16-run-qa 0,4,4,4 4 0.25 adamw-optimum:64 sharded
base-pod16-paddle 6,6 4 0.4 adamw-paddle:256 sharded @4
base-pod16-run-qa-fast 6,6 8 0.2 adamw-optimum:64 x2 sharded @8
base-pod16-tf2-384,base-pod16-tf2-512 0,4,4,4 4 0.25,0.23,0.28,0.25 lamb:1 x2 head-on-0 offchip
base-pod4-examples 0,4,4,4 1 0.25 adamw:64 sharded @2
base-pod4-tf2-384,base-pod4-tf2-512 0,4,4,4 1 0.25,0.23,0.28,0.25 lamb:1 x2 head-on-0 offchip
large-pod16-examples-8ipu 2,3,3,3,3,3,3,4 2 0.08,0.25,0.32,0.32,0.36,0.38,0.4,0.32 adamw:64 sharded @2
{EXAMPLES} 3,7,7,7 4 0.15,0.25,0.25,0.25 adamw:64 offchip sharded
large-pod16-optimum,large-pod16-notebook,large-pod64-optimum 3,7,7,7 4 0.15,0.18,0.2,0.25 adamw-raw:1 x2 offchip sharded
large-pod16-notebook-fast 3,7,7,7 4 0.15,0.18,0.2,0.25 adamw-raw:1 x2 offchip sharded @8
large-pod16-tf2-384,large-pod16-tf2-512,large-pod64-tf2-384 3,7,7,7 4 0.08,0.15,0.15,0.15 lamb:1 x2 head-on-0 offchip
large-pod4-examples,+-packed 3,7,7,7 1 0.15,0.25,0.25,0.25 adamw:64 offchip sharded
large-pod4-tf2-384,large-pod4-tf2-512 3,7,7,7 1 0.08,0.15,0.15,0.15 lamb:1 x2 head-on-0 offchip
""",
    "predict": f"""
base-pod16-examples,base-pod16-run-qa-fast 6,6 8 0.25 @4
base-pod4-optimum-packed 0,4,4,4 1 0.22 @64
base-pod16-optimum,base-pod16-run-qa 0,4,4,4 4 0.25 @5
base-pod16-paddle 6,6 4 0.4 @4
base-pod16-tf2-384,base-pod16-tf2-512 0,4,4,4 4 0.25,0.23,0.28,0.25 @5 head-on-0
base-pod4-examples 6,6 2 0.25 @4
base-pod4-tf2-384,base-pod4-tf2-512 0,4,4,4 1 0.25,0.23,0.28,0.25 @5 head-on-0
{EXAMPLES},large-pod16-examples-8ipu,large-pod16-notebook-fast 12,12 8 0.25 @4
large-pod16-optimum,large-pod16-notebook,large-pod64-optimum 3,7,7,7 4 0.15,0.18,0.2,0.25 @4
large-pod16-tf2-384,large-pod16-tf2-512,large-pod64-tf2-384 3,7,7,7 4 0.08,0.15,0.15,0.15 @5 head-on-0
large-pod4-examples,+-packed 12,12 2 0.25 @4
large-pod4-tf2-384,large-pod4-tf2-512 3,7,7,7 1 0.08,0.15,0.15,0.15 @5 head-on-0
""",
}
LAYOUTS = [Layout(job, line) for job, table in TABLES.items() for line in table.split("\n")[1:-1]]
