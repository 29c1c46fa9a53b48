//! ONNX's messages, made from `proto/onnx.proto` when the crate is built.

#![allow(missing_docs, clippy::all, reason = "generated code")]

include!(concat!(env!("OUT_DIR"), "/onnx.rs"));
