"""A lease on one name in a store: who may write, fenced by a number. `lease` is the pure core, read it first; such
records lie in `cells`."""
