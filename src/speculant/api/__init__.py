"""What users import: models with drafters, results, batches."""
