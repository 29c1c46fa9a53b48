//! The preceding stages, shared by the examples.

use devbay_host::{Device, Error, ErrorKind, Model, Result, Runtime, RuntimeBuilder, Session, Tensor};
use std::sync::Arc;

/// A small model: digits in images of 28 by 28 pixels.
pub const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/mnist_cnn/model.onnx");

/// Returns a builder with the plugin from the command line, or else with the linked CPU plugin.
pub fn runtime() -> RuntimeBuilder {
    match std::env::args_os().nth(1) {
        Some(path) => Runtime::builder().plugin(path),
        None => Runtime::builder().link(devbay_plugin_cpu::PLUGIN),
    }
}

/// Returns a runtime with the plugin, its device, and a small model.
pub fn runtime_and_model() -> Result<(Runtime, Arc<Device>, Model)> {
    let runtime = runtime().build()?;
    let model = Model::load(MODEL)?;
    let device = runtime.device_for(&model)?;
    Ok((runtime, device, model))
}

/// Returns a grey image for the model's first input.
pub fn image(session: &Session) -> Result<Tensor> {
    let ty = session.inputs().first().and_then(|port| port.ty.clone());
    let shape =
        ty.and_then(|ty| ty.shape).ok_or_else(|| Error::new(ErrorKind::InvalidModel, "no image input"))?;
    // One image, if the model takes any number.
    let shape: Vec<usize> = shape.iter().map(|dim| dim.known().unwrap_or(1)).collect();
    Tensor::from_elements(&shape, &vec![0.5f32; shape.iter().product()])
}
