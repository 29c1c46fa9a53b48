//! Makes the Rust types of ONNX's messages from the vendored `proto/onnx.proto` and `proto/onnx-data.proto`.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto/onnx.proto");
    println!("cargo::rerun-if-changed=proto/onnx-data.proto");
    let files = protox::compile(["proto/onnx.proto", "proto/onnx-data.proto"], ["proto"])?;
    prost_build::Config::new()
        // Views of the model's bytes instead of copies.
        .bytes([".onnx.TensorProto.raw_data"])
        // An attribute has one of these; unboxed, each would take the room of all.
        .boxed(".onnx.AttributeProto.t")
        .boxed(".onnx.AttributeProto.g")
        .boxed(".onnx.AttributeProto.sparse_tensor")
        .boxed(".onnx.AttributeProto.tp")
        // The schema has them; as Rust documentation they would be broken Markdown.
        .disable_comments(["."])
        .compile_fds(files)?;
    Ok(())
}
