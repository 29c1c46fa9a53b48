//! The fifth stage: runs a plan on named inputs, then into the caller's memory, which allocates nothing.
//!
//! `cargo run -p devbay-host --example 05_run [PLUGIN]`; without a plugin, the CPU plugin is used.

#![expect(clippy::print_stdout, reason = "an example shows what it finds")]

mod setup;

use devbay_host::{InputView, Result, RunOptions, Session};

fn main() -> Result<()> {
    let (runtime, device, model) = setup::runtime_and_model()?;
    let session = Session::new(&model, &device)?;
    let image = setup::image(&session)?;
    let name = session.inputs()[0].name.clone();
    let outputs = session.run(&[(&name, &image)])?;
    for (port, output) in session.outputs().iter().zip(&outputs) {
        println!("{}: {}", port.name, output.tensor_type());
        if let Some(values) = output.elements::<f32>() {
            println!("  {:.4?}", &values[..values.len().min(10)]);
        }
    }
    // Again, into existing memory: from the second run on nothing is allocated.
    let mut memory: Vec<Vec<u8>> = outputs.iter().map(|output| vec![0; output.bytes().len()]).collect();
    for _ in 0..3 {
        let mut views: Vec<&mut [u8]> = memory.iter_mut().map(Vec::as_mut_slice).collect();
        session.run_into(&[InputView::of(&image)], &mut views, &RunOptions::default())?;
    }
    assert!(memory.iter().zip(&outputs).all(|(again, first)| again == first.bytes()), "the same results");
    for memory in runtime.memory() {
        println!("{}: {} bytes at most", memory.device, memory.bytes_peak);
    }
    Ok(())
}
