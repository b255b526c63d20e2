"""A target on several GPUs.

"""
