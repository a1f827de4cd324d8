"""`python -m tests.browser PAGE... [--pictures FOLDER]`: what is wrong with pages, and how they look.

The pictures are of the whole page: wide and as on a phone, light and dark.
"""

import argparse
import sys
from pathlib import Path

from tests.browser import chromium
from tests.browser.looking import problems


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pages", type=Path, nargs="+", metavar="PAGE")
    parser.add_argument("--pictures", type=Path, metavar="FOLDER")
    options = parser.parse_args()
    wrong = 0
    with chromium.started() as browser:
        for file in options.pages:
            texts = problems(browser, file)
            wrong += bool(texts)
            print(f"{file}: {'' if texts else 'nothing is wrong'}", *texts, sep="\n  ")
            for phone in (False, True) if options.pictures else ():
                for dark in (False, True):
                    with chromium.window(browser, phone=phone, dark=dark) as page:
                        name = f"{file.stem}-{'phone' if phone else 'desk'}-{'dark' if dark else 'light'}.png"
                        chromium.opened(page, file).screenshot(path=options.pictures / name, full_page=True)
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
