"""Graph attention network (Velickovic et al.

2018; M. T. Dearing and X. Wang's study).
"""
