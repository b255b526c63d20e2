"""What to run: one YAML file per question, the question in its first line. `base/` holds what several of them share.

`specgate micro`, `full` and `load` without `--scenario` run every scenario of their kind that is meant for this
machine (`needs: cpu` where there is no GPU, `needs: gpu` where there is one), except those that say `default: false`.
`--scenario FAMILY` means those of them of one family: baseline, single, batch, large-context, stress, load.

| scenario | kind | needs | context | batch | spec | asks |
|---|---|---|---|---|---|---|
| `cpu-first` | micro | cpu | 512 | 1 | 3 | does the main job work end to end? The gate before `cpu-full-512` |
| `cpu-1k-single`, `cpu-512-batch4` | micro | cpu | 1K, 512 | 1, 4 | 3 | the longer looks (not by default) |
| `cpu-spec-sweep` | micro | cpu | 512 | 1 | 1–5 | acceptance against draft length (not by default) |
| `cpu-full-512` | full | cpu | 512 | 1 | 3 | whole requests, natural ends |
| `cpu-sampled`, `cpu-full-sampled` | micro, full | cpu | 512 | 4, 1 | 3 | temperature 1, coupled (not by default) |
| `cpu-drawn` | micro | cpu | 128 | 16 | 3 | by rejection: are 20,000 texts the target's? (not by default) |
| `cpu-variants` | micro | cpu | 1K | 1 | 3 | fp8 and NVFP4 caches, a tree, temperature 1 (not by default) |
| `cpu-specpv` | micro | cpu | 1K | 1 | 3 | verification over a part of the cache (not by default) |
| `cpu-engines` | full | cpu | 256, 1K, 2K | 1 | 3 | other engines beside the reference (not by default) |
| `micro-16k-b4`, `micro-32k-single` | micro | gpu | 16K, 32K | 4, 1 | 3 | the two gates before any full run |
| `full-16k-b4`, `full-32k-single` | full | gpu | 16K, 32K | 4, 1 | 2–5 | the same cells as whole requests |
| `baseline` | full | gpu | 8K | 1 | 2–5 | the anchor: equal work in every block |
| `batch` | full | gpu | 8K | 4, 8 | 2–5 | more requests at once |
| `micro-8b-16k-b4`, `micro-8b-32k-single` | micro | gpu | 16K, 32K | 4, 1 | 3 | 8B size, planted (not by default) |
| `full-8b-16k-b4`, `full-8b-32k-single` | full | gpu | 16K, 32K | 4, 1 | 3 | whole requests of it (not by default) |
| `micro-8b-4k-sampled` | micro | gpu | 4K | 4 | 3 | 8B size at temperature 1, coupled (not by default) |
| `micro-8b-drawn` | micro | gpu | 1K | 8 | 3 | 8B size by rejection: are 20,000 texts the target's? (not by default) |
| `batch-8b` | micro | gpu | 4K | 1–64 | 1, 3 | up to how many requests at a time speculation pays (not by default) |
| `active-slots-8b` | full | gpu | 4K | 1–8 | 3 | do requests that have ended cost anything? (not by default) |
| `variants-8b` | micro | gpu | 8K–64K | 1 | 3 | 8B size: fp8 and NVFP4 caches beside spec-3 (not by default) |
| `micro-120b-16k-b4`, `micro-120b-32k-single` | micro | gpu | 16K, 32K | 4, 1 | 3 | gpt-oss-120b (not by default) |
| `micro-120b-1k-single` | micro | gpu | 1K | 1 | 3 | the same with a short prompt (not by default) |
| `full-120b-16k-b4`, `full-120b-32k-single` | full | gpu | 16K, 32K | 4, 1 | 3 | whole requests (not by default) |
| `full-120b-1k-single` | full | gpu | 1K | 1 | 3 | the same with a short prompt (not by default) |
| `full-120b-1k-sampled` | full | gpu | 1K | 1 | 3 | the same at MLPerf's temperature, 1 (not by default) |
| `load-sweep` | load | gpu | 1K | 1–32 | 3 | up to how many requests at a time speculation pays |
| `load-8b` | load | gpu | 1K | 1–32 | 3 | the same for exported planted pairs of 8B size (not by default) |
| `load-rates` | load | gpu | 1K | 32 | 3 | up to how many requests per second (not by default) |
| `load-gpt-oss` | load | gpu | 1K | 4–64 | 3 | MLPerf's limits for gpt-oss-120b (not by default) |
| `cpu-load` | load | cpu | 256 | 1–8 | 3 | the same as `load-sweep` on a CPU |
| `stress` | full | gpu | 32K + 5, 64K | 1 | 2–5 | odd and very long prompts; LMDeploy: two cache sizes |
"""
