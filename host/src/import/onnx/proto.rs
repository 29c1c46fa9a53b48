//! ONNX's messages, generated from `proto/onnx.proto` by the build script.

#![allow(missing_docs, clippy::all, reason = "generated code")]

include!(concat!(env!("OUT_DIR"), "/onnx.rs"));
