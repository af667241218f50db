# Fooled: files change while they are packed.
# code: ok
# not kept: late
(sleep 1; echo late > late) >/dev/null 2>&1 &
setsid -f sh -c 'sleep 1; echo late > late' >/dev/null 2>&1
