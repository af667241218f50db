# Fooled: a compiled module is in the tree, and runs in place of the source that everybody reads.
# code: ok
# not kept: calc/__pycache__/sums.cpython-311.pyc
python3 -c "import py_compile as c; c.compile('calc/sums.py', invalidation_mode=c.PycInvalidationMode.UNCHECKED_HASH)"
