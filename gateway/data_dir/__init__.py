"""gateway/data_dir."""
