# Fooled: what was not changed counts as changed, or the other way round.
# code: ok
# unchanged: yes
find . -exec touch -d 2199-01-01 {} + ; touch -d 1970-01-01 README.md
