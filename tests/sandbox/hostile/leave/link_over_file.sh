# Fooled: what is written to a file that was there before goes where the link leads.
# code: EPATH
rm README.md && ln -s ../../../../etc/cron.d/x README.md
