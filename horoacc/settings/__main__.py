"""`python -m horoacc.settings > docs/settings.md`."""

from horoacc.settings.document import documentation

if __name__ == "__main__":
    print(documentation(), end="")
