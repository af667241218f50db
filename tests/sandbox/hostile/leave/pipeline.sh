# Fooled: a program of the patch's runs with the credentials of whoever tests it.
# code: EAPPROVAL
mkdir -p .github/workflows && printf 'on: push\n' > .github/workflows/x.yml
