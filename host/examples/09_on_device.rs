//! Results that stay on the device: the input of the next run, or another library's by DLPack, without a copy.
//!
//! `cargo run -p devbay-host --example 09_on_device [PLUGIN]`; without a plugin, the CPU plugin is used.

#![expect(clippy::print_stdout, reason = "an example shows what it finds")]

mod setup;

use devbay_host::{AppStream, DeviceTensor, Error, ErrorKind, Model, Result, RunOptions, Session};
use std::ptr::null_mut;

/// A second model, which turns the scores of the first one into probabilities.
const BEHIND: &str = r#"devbay-program 1

program "probabilities"(%scores: f32[1,10]) {
  %y: f32[1,10] = Softmax@13(%scores) as "probabilities" {axis = 1}
  return %y
}
"#;

fn main() -> Result<()> {
    let (_runtime, device, model) = setup::runtime_and_model()?;
    let first = Session::new(&model, &device)?;
    let second = Session::new(&Model::from_text(BEHIND)?, &device)?;
    let image = setup::image(&first)?;
    let expected = first.run(&[(&first.inputs()[0].name, &image)])?;

    let image = DeviceTensor::new(&image, &device)?;
    let options = RunOptions::default();
    let scores = first.run_on_device(&[(&first.inputs()[0].name, &image)], None, &options)?;
    let nowhere = || Error::new(ErrorKind::NotFound, "a model without outputs");
    let scores = scores.into_iter().next().ok_or_else(nowhere)?;
    println!("the scores are on {}", scores.device().map_or("the host", |device| device.name()));
    let found = scores.to_tensor()?;
    println!("the same as by way of the host: {}", found.bytes() == expected[0].bytes());

    // Work that an application enqueued on its own stream comes first; NULL is CUDA's default stream.
    // SAFETY: NULL is a valid stream in every native API that has streams.
    match unsafe { AppStream::wrap(&device, null_mut()) } {
        Ok(mut stream) => {
            let inputs = [(&*first.inputs()[0].name, &image)];
            let behind = first.run_on_device(&inputs, Some(stream.point()?), &options)?;
            let same = behind[0].to_tensor()?.bytes() == expected[0].bytes();
            println!("the same behind a stream of the application's: {same}");
        }
        Err(error) => println!("no native streams: {error}"),
    }

    let probabilities = second.run_on_device(&[("scores", &scores)], None, &options)?;
    let probabilities = probabilities.into_iter().next().ok_or_else(nowhere)?;
    let sum: f32 = probabilities.to_tensor()?.elements::<f32>().unwrap_or_default().iter().sum();
    println!("probabilities add up to {sum:.3}");

    match probabilities.into_dlpack() {
        Ok(tensor) => {
            let view =
                tensor.validate_export().map_err(|e| Error::new(ErrorKind::Internal, e.to_string()))?;
            let device = view.device();
            println!("by DLPack: {:?} on {:?}:{}", view.shape(), device.device_type, device.device_id);
        }
        // A plugin need not offer native memory.
        Err(error) => println!("not by DLPack: {error}"),
    }
    Ok(())
}
