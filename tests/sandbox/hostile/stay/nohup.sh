# What anybody would try first: nohup, in the background, with its output elsewhere. Called with a mark.
#
# Fooled: a process with that mark is there after the command's end.
nohup sh -c 'while :; do sleep 1; done' "$1" >/dev/null 2>&1 &
setsid -f sh -c 'trap "" TERM HUP INT; while :; do sleep 1; done' "$1" </dev/null >/dev/null 2>&1
