//! Mutations that keep a format's structure. libFuzzer's own mutations change bytes, which mostly breaks a format with
//! lengths at the first change.

pub mod protobuf;
