# Fooled: a clone with its submodules runs what the link leads to.
# code: EPATH
echo x > x && ln -s x .gitmodules
