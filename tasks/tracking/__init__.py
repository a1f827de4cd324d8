"""Trackers that watch a training: Weights & Biases, TensorBoard, MLflow. No stage depends on them."""
