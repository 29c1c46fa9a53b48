//! Mutations that keep a form's structure: libFuzzer's own change bytes, which in a form with lengths mostly breaks it at the
//! first one.

pub mod protobuf;
