"""Recognises the text in a picture that it draws, with rapidocr-onnxruntime: `python text.py`.

It imports nothing of devbay. `python -m devbay.onnxruntime text.py` runs it on devbay.
"""

import sys

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from rapidocr_onnxruntime import RapidOCR

picture = Image.new("RGB", (640, 240), "white")
draw = ImageDraw.Draw(picture)
font = ImageFont.load_default(size=40)
for y, line in ((20, "Hello devbay 2026"), (90, "the quick brown fox"), (160, "jumps over 13 lazy dogs")):
    draw.text((20, y), line, fill="black", font=font)
found, _ = RapidOCR()(np.array(picture))
for box, text, score in found:
    print(f"{text!r} {float(score):.5f} {np.round(box).astype(int).tolist()}")

import onnxruntime  # noqa: E402  (the package above has imported it)

print("engine:", onnxruntime.__name__, file=sys.stderr)
