"""Merge LoRA adapters into their base, tensor by tensor, with the bits that peft makes."""
