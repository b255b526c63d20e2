"""Files on disk: run folders, JSON records, YAML, the cache.

run_folder.py      the run folder: written as the run goes, finished atomically, readable again
samples.py         its files as such, and its journals: appended to and read, as `journal.py` declares them
run_schema.py      the schema of run.json, and which version added which field
journal.py         all samples of a run, and the table of its journals: file, noun of a line, key
manifest.py        MANIFEST.sha256: the hash of every file of a run, and whether its folder agrees
config.py          what decides a run, as `config.resolved.yaml` holds it
json_record.py     one noun in a JSON file of its own, with its schema
json_text.py       JSON that others may have written: within bounds, and without NaN
panics.py          what libraries written in Rust raise, made into errors
yamlfile.py        YAML that remembers the line of every key
yaml_schema.py     a noun from a YAML document, and every problem of the file at once
cache.py           the user's cache: wheels, converted checkpoints, tuned configurations
writing.py         writing whole files: never half of one
"""
