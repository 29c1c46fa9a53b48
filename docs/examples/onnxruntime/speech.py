"""Finds speech in 16-bit mono audio of 8 kHz with silero-vad: `python speech.py AUDIO.raw`.

It imports nothing of devbay. `python -m devbay.onnxruntime speech.py AUDIO.raw` runs it on devbay.
"""

import sys
from pathlib import Path

import numpy as np
import silero_vad
import torch
from silero_vad.sequence_vad import SileroVADSequence

audio = np.fromfile(sys.argv[1], np.int16).astype(np.float32) / 32768
pause = np.zeros(8000, np.float32)
audio = np.concatenate([pause, audio, pause, audio[::2]])

model = silero_vad.load_silero_vad(onnx=True)
for span in silero_vad.get_speech_timestamps(torch.from_numpy(audio), model, sampling_rate=8000):
    print("speech", span)

model.reset_states()
frames = (torch.from_numpy(audio[i : i + 256]) for i in range(0, len(audio) - 256, 256))
scores = [model(frame, 8000).item() for frame in frames]
print(len(scores), "frames", [f"{score:.5f}" for score in scores[::8]])

# The path that needs no torch: one run for all frames, at 16 kHz.
twice = np.interp(np.arange(2 * len(audio)) / 2, np.arange(len(audio)), audio).astype(np.float32)
blocks = SileroVADSequence(Path(silero_vad.__file__).parent / "data/silero_vad_16k_sequence.onnx")
scores = blocks.audio_forward(twice)
print(len(scores), "frames in blocks", [f"{score:.5f}" for score in scores[::8]])

import onnxruntime  # noqa: E402  (the packages above have imported it)

print("engine:", onnxruntime.__name__, file=sys.stderr)
