"""One step on the device: index tensors, pool, attention, model, sampler."""
