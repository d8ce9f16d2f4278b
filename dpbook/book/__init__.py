"""Code of single chapters: a folder for each, with a judge for the tasks of its exercise; `sim`; `gpu_records`."""
