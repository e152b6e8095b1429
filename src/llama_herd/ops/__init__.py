"""What worker and gateway both show: metrics and logs."""
