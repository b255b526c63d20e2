"""TODO map"""
