"""Experiment trackers: trackio, Weights & Biases, TensorBoard, MLflow. No stage depends on this package."""
