"""Graph attention network: Velickovic et al. 2018, as M. T. Dearing and X. Wang's study uses it."""
