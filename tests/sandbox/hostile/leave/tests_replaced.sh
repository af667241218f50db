# Fooled: the protected folder is another one, whose files nobody protected.
# code: EPERM
mkdir other && echo 'def test_double(): pass' > other/test_sums.py && rm -r tests && ln -s other tests
