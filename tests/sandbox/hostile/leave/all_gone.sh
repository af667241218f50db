# Fooled: the workspace itself is another folder, or none.
# code: EPATH
find . -mindepth 1 -delete; cd / && mv workspace gone; rmdir workspace; ln -s /etc workspace
