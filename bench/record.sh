#!/usr/bin/env bash
# Measure what the documents claim on this machine: bench/record.sh MACHINE --out FOLDER (see bench/record/)
cd "$(dirname "$0")/.." && exec "${PYTHON:-.venv/bin/python}" -m bench.record "$@"
