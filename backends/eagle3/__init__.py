"""The built-in EAGLE-3 engine and all that belongs to it. It is a plug-in: specgate reaches it by `entry_points.txt`
only.

    docs/          how it is used, how it works, how fast it is
    commands/      commands that join specgate's: bench, tune, tree, and making pairs
    pair_tools/    making pairs: training drafts, planting pairs, exporting them for other engines
    tuning/        searches over an engine's configurations
    pairs/         the pairs that come along, by name
    cupy/          the engine itself: CUDA kernels of its own, whole cycles in CUDA graphs
    transformers/  Hugging Face transformers: a target's own forward pass, in the reference's loop
    reference/     EAGLE-3 in plain torch: the oracle of every other engine
    lib/           EAGLE-3 in torch's terms, as the three engines share it
    nouns/         values that cross a wall inside this house: matrix products, tilings, benches

From top to bottom; each part imports only from parts below it. Engines (`cupy`, `transformers`, `reference`, `lib`,
`nouns`) import of specgate the public rooms alone; the parts above them also import what commands need.
"""
