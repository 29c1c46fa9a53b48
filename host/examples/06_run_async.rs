//! Asynchronous runs: many at once on one plan, with continuations on their results.
//!
//! `cargo run -p devbay-host --example 06_run_async [PLUGIN]`; without a plugin, the CPU plugin is used.

#![expect(clippy::print_stdout, reason = "an example shows what it finds")]

mod setup;

use devbay_host::internals::core::async_value::when_all;
use devbay_host::{OnFull, Priority, Result, Run, RunOptions, Session, SessionOptions};
use std::num::NonZeroUsize;

fn main() -> Result<()> {
    let (_runtime, device, model) = setup::runtime_and_model()?;
    // At most eight in flight: starting a ninth waits until one has ended.
    let options = SessionOptions { runs_max: NonZeroUsize::new(8), ..SessionOptions::default() };
    let session = Session::with_options(&model, &device, options)?;
    let image = setup::image(&session)?;
    let name = session.inputs()[0].name.clone();
    let start = |priority| {
        let options = RunOptions { priority, on_full: OnFull::Wait, ..RunOptions::default() };
        session.run_async(&[(&name, &image)], &options)
    };
    let mut runs: Vec<Run> = (0..20).map(|_| start(Priority::Normal)).collect::<Result<_>>()?;
    runs.push(start(Priority::High)?);
    // Continuations are attached before the results are available.
    let largest: Vec<_> = runs
        .iter()
        .map(|run| {
            run.outputs()[0].map(|scores| {
                let scores = scores.elements::<f32>().unwrap_or_default();
                scores.iter().copied().fold(f32::MIN, f32::max)
            })
        })
        .collect();
    when_all(largest.iter().cloned()).wait().map_err(Clone::clone)?;
    println!("{} runs; the largest score of the first is {:?}", runs.len(), largest[0].get());
    // A run can also be waited for, or awaited.
    let outputs = runs.remove(0).wait()?;
    println!("its first output is {}", outputs[0].tensor_type());
    Ok(())
}
