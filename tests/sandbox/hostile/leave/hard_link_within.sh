# Fooled: a change of one file is a change of another that may not be changed.
# code: EPERM
ln -f tests/test_sums.py free.py && echo 'def test_double(): pass' > free.py
