"""Device jobs of downstream tasks and their stages: compile, finetune, predict."""
