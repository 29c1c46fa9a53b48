//! A model on two devices at once: pinned nodes, the plan's copies, and each device's share.
//!
//! `cargo run -p devbay-host --example 08_two_devices [PLUGIN]`; without a plugin, the CPU plugin is used. It provides both
//! devices: one that works in the host's memory, and one with its own memory, streams and copies, like an accelerator.

#![expect(clippy::print_stdout, reason = "an example shows what it finds")]

#[expect(dead_code, reason = "this example has a runtime of its own")]
mod setup;

use devbay_host::internals::core::plan::section::StepKind;
use devbay_host::{Model, Result, Session, SessionOptions, Tensor};
use std::sync::Arc;

fn main() -> Result<()> {
    let runtime = setup::runtime().option("cpu", "streams", "inline,async").build()?;
    let [first, second] = &runtime.devices()[..] else {
        println!("the plugin has {} devices, two are wanted", runtime.devices().len());
        return Ok(());
    };
    let model = Model::load(setup::MODEL)?;
    let alone = Session::new(&model, first)?;
    let image = setup::image(&alone)?;

    let pins = vec![("node_Conv_3".to_owned(), Arc::clone(second))];
    let placed = Session::with_options(&model, first, SessionOptions { pins, ..SessionOptions::default() })?;
    let inputs = [("input", &image)];
    let plan = placed.plan_for(&inputs)?;
    for section in plan.sections() {
        let copies = section.kinds.iter().zip(&section.labels).filter(|(kind, _)| **kind == StepKind::Copy);
        for (_, label) in copies {
            println!("{label}");
        }
    }
    for (node, device) in plan.elsewhere(first) {
        println!("{node} runs on {}", device.name());
    }
    let one = alone.run(&inputs)?;
    let two = placed.run(&inputs)?;
    // A pinned node stays as the model has it, while other convolutions become ones that round otherwise.
    let numbers = |outputs: &[Tensor]| outputs[0].elements::<f32>().unwrap_or_default().to_vec();
    let (one, two) = (numbers(&one), numbers(&two));
    let is_same = !one.is_empty() && one.iter().zip(&two).all(|(a, b)| (a - b).abs() <= 1e-4);
    println!("the same result on one device and on two: {is_same}");
    for usage in runtime.memory() {
        println!("{}: {} bytes at most", usage.device, usage.bytes_peak);
    }
    Ok(())
}
