#!/bin/sh
# Judges the plugin without a GPU: builds the emulator, and runs the conformance suite on the plugin with it in place of
# CUDA's driver and NVRTC. Kernels run on the processor, so this tests the host's side and the meaning of the kernels'
# text, and nothing of a GPU.
#
#   plugins/cuda/emulator/run.sh target/debug/devbay target/debug/libdevbay_plugin_cuda.so [arguments of conformance]
#
# Products of matrices and convolutions go to the emulated cuBLASLt and cuDNN; with `--plugin-option cublas=no` and
# `--plugin-option cudnn=no` they are the plugin's own.
set -eu
devbay=$1 plugin=$2
shift 2
here=$(cd "$(dirname "$0")" && pwd)
export EMULATOR_DIR="${EMULATOR_DIR:-${TMPDIR:-/tmp}/devbay-cuda-emulator}"
mkdir -p "$EMULATOR_DIR"
c++ -std=c++17 -O1 -g -shared -fPIC -pthread -o "$EMULATOR_DIR/libcuda.so.1" "$here"/*.cpp -ldl
ln -sf libcuda.so.1 "$EMULATOR_DIR/libcublasLt.so.13"
ln -sf libcuda.so.1 "$EMULATOR_DIR/libcudnn.so.9"
LD_LIBRARY_PATH="$EMULATOR_DIR" DEVBAY_NVRTC="$EMULATOR_DIR/libcuda.so.1" \
  exec "$devbay" conformance "$plugin" "$@"
