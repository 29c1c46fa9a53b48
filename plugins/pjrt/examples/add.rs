//! Measures an addition of four numbers on a PJRT library, from the call to its end: the baseline for anything built on
//! this crate.
//!
//! `cargo run --release -p devbay-plugin-pjrt --example add -- path/to/library.so [executions]`

use devbay_plugin_pjrt::buffer::HostArray;
use devbay_plugin_pjrt::client::Client;
use devbay_plugin_pjrt::element::ElementType;
use devbay_plugin_pjrt::executable::{CompileOptions, Executable, Input};
use devbay_plugin_pjrt::library::Library;
use std::path::Path;
use std::time::Instant;

const ADD: &[u8] = b"module @add {
  func.func public @main(%a: tensor<4xf32>, %b: tensor<4xf32>) -> tensor<4xf32> {
    %sum = stablehlo.add %a, %b : tensor<4xf32>
    return %sum : tensor<4xf32>
  }
}";

#[allow(clippy::print_stdout, reason = "an example tells what it measured")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("usage: add LIBRARY [EXECUTIONS]")?;
    let n: usize = arguments.next().map_or(Ok(100_000), |n| n.parse())?;
    // SAFETY: the user names a library that they trust.
    let library = unsafe { Library::open(Path::new(&path)) }?;
    let client = Client::create(library, &[])?;
    let device = client.devices().into_iter().next().ok_or("no device")?;
    println!("{path}: API {:?}, {}, {}", library.version(), client.platform_name(), device.description());

    let executable = Executable::compile(&client, ADD, 2, &CompileOptions::for_device(device.id()))?;
    let numbers = [1f32, 2.0, 3.0, 4.0];
    let bytes = bytemuck::bytes_of(&numbers);
    let array = HostArray { bytes, element: ElementType::F32, dims: &[4], byte_strides: None };
    let (a, b) = (device.upload(&array)?, device.upload(&array)?);

    // Passes, of which the median is told: machines are noisy.
    let mut times_ns = Vec::new();
    for _ in 0..10 {
        let start = Instant::now();
        for _ in 0..n / 10 {
            let execution = executable.execute(&[Input::from(&a), Input::from(&b)])?;
            execution.done.wait()?;
        }
        times_ns.push(start.elapsed().as_nanos() as f64 / (n / 10) as f64);
    }
    times_ns.sort_by(f64::total_cmp);
    println!("execute and wait: {:.0} ns (median of 10 passes of {})", times_ns[5], n / 10);

    let mut sums = [0f32; 4];
    let execution = executable.execute(&[Input::from(&a), Input::from(&b)])?;
    execution.outputs[0].download(bytemuck::bytes_of_mut(&mut sums))?;
    if sums != [2.0, 4.0, 6.0, 8.0] {
        return Err(format!("expected [2, 4, 6, 8], found {sums:?}").into());
    }
    Ok(())
}
