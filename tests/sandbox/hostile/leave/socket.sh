# Fooled: what packs the workspace leaves it out without a word, or does not end.
# code: EPATH
python3 -c "import socket; socket.socket(socket.AF_UNIX).bind('notes')"
