"""A report of two gigabytes that takes no room. Fooled: it is read into memory."""

with open("/tmp/report.xml", "wb") as file:
    try:
        file.truncate(2 << 30)
    except OSError:
        file.truncate(200 << 20)
