"""Writes digits.csv from scikit-learn's copy of the UCI handwritten digits; see README.md beside it.

pip install scikit-learn && python make_digits.py
"""

import pathlib

from sklearn.datasets import load_digits


def main():
    digits = load_digits()
    assert digits.data.shape == (1797, 64)
    names = [f"pixel_{row}_{column}" for row in range(8) for column in range(8)] + ["label"]
    lines = [",".join(names)]
    for levels, label in zip(digits.data.astype(int), digits.target):
        assert levels.min() >= 0 and levels.max() <= 16 and 0 <= label <= 9
        lines.append(",".join(str(value) for value in [*levels, label]))
    path = pathlib.Path(__file__).with_name("digits.csv")
    path.write_text("\n".join(lines) + "\n", encoding="ascii", newline="\n")
    print(f"{path.name}: {len(lines) - 1} digits, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
