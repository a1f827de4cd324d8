"""`python -m tests.browser PAGE... [--pictures FOLDER]`: what is wrong with pages, and how they look.

The pictures are of the whole page: wide and as on a phone, light and dark.
"""

import argparse
import sys
from pathlib import Path

from tests.browser import chromium
from tests.browser.looking import problems


def main():
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("pages", type=Path, nargs="+", metavar="PAGE")
    words.add_argument("--pictures", type=Path, metavar="FOLDER")
    given = words.parse_args()
    wrong = 0
    with chromium.started() as browser:
        for file in given.pages:
            found = problems(browser, file)
            wrong += bool(found)
            print(f"{file}: {'nothing is wrong' if not found else ''}", *found, sep="\n  ")
            for phone in (False, True) if given.pictures else ():
                for dark in (False, True):
                    with chromium.window(browser, phone=phone, dark=dark) as page:
                        name = f"{file.stem}-{'phone' if phone else 'desk'}-{'dark' if dark else 'light'}.png"
                        chromium.opened(page, file).screenshot(path=given.pictures / name, full_page=True)
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
