# Fooled: a name is taken for an option, for two names, or for words of ours on a terminal.
# code: ok
# kept: -rf
# kept: --checkpoint-action=exec=sh x
python3 - <<'END'
for name in (b"-rf", b"--checkpoint-action=exec=sh x", b"new\nline", b"\x1b[2J\x1b]0;owned\x07", b"caf\xe9", b" ", b"a\\..\\b",
             "\u202egnp.exe".encode(), b"a" * 255, b"con", b"%s%n", b"$(reboot)", b"`reboot`", b"'\"", b"a\tb", b"..."):
    open(name, "w").close()
END
