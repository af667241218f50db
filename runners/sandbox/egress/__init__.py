"""The one way out of a sandbox whose job has a network: a proxy of ours that listens inside of it.

The sandbox stays what it is: a network namespace with a loopback, no interface and no route. A process of this
machine enters that namespace for the moment in which it opens a listening socket on the loopback, goes back, gives up
root, and serves what comes through that socket: HTTP's CONNECT, and plain HTTP in absolute form. Nothing inside can go
around it, since there is nowhere else to go; and it goes nowhere but where the job's list leads, at addresses that it
looked up and judged itself.

Two sides. In the worker: `outlet`, which starts that process for one command, lets it in and writes down what it tells,
and `entrance`, which finds the namespace. In the process, which imports no more than it needs, has no database and
no credential, runs as a user of its own and ends with the sandbox, the command or the worker, whichever is first:
`process`, `proxy`, `request`, `dial`, `hello`, `tunnel` and `plain`.

Why not a proxy from elsewhere: those that were looked at (proxy.py, pproxy, mitmproxy) resolve a name anew when they
connect, or open their socket themselves, and bring far more than is wanted between a stranger's code and the internet.
HTTP itself is h11's, which is small, strict and does no I/O: what goes on was parsed and is written anew.
"""
