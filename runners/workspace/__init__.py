"""Workspaces as git trees: read, changed, compared, packed and streamed without a checkout on the host.

A workspace is a tree id in a bare repository that we made ourselves. Everything here turns ids into bytes and bytes
into ids; nothing here writes a file of an untrusted repository to a place where something could run it.
"""
