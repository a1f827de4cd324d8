"""The device jobs of downstream work, and the stages that start them: compile, finetune, predict."""
