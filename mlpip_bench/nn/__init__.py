"""Networks that methods share: normalization, backbones, layers, amortization networks."""
