//! What the examples after the third have in common: the stages before.

use devbay_host::{Device, Error, ErrorKind, Model, Policy, Requirements, Result, Runtime, Session, Tensor};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The plugin that is named, or the CPU plugin where cargo puts it.
pub fn plugin() -> PathBuf {
    std::env::args_os().nth(1).map_or_else(
        || {
            let example = std::env::current_exe().unwrap_or_default();
            example.with_file_name("..").join("libdevbay_plugin_cpu.so")
        },
        PathBuf::from,
    )
}

/// A runtime with the plugin, its device, and a small model.
pub fn runtime_and_model() -> Result<(Runtime, Arc<Device>, Model)> {
    let runtime = Runtime::builder().plugin(plugin()).build()?;
    let model =
        Model::load(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../models/mnist_cnn/model.onnx")))?;
    let requirements = Requirements { program: Some(model.program()), ..Requirements::default() };
    let device = runtime.choose(&Policy::Auto, &requirements)?.device;
    Ok((runtime, device, model))
}

/// An image for the model's first input: grey.
pub fn image(session: &Session) -> Result<Tensor> {
    let ty = session.inputs().first().and_then(|port| port.ty.clone());
    let shape =
        ty.and_then(|ty| ty.shape).ok_or_else(|| Error::new(ErrorKind::InvalidModel, "no image input"))?;
    // One image, where the model takes any number.
    let shape: Vec<usize> = shape.iter().map(|dim| dim.known().unwrap_or(1)).collect();
    Tensor::from_elements(&shape, &vec![0.5f32; shape.iter().product()])
}
