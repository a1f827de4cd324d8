"""Trackers that watch a training: trackio, Weights & Biases, TensorBoard, MLflow. No stage depends on them."""
