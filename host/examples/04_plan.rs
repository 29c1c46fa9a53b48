//! The fourth stage: plans a program for a device, and prints its launches and memory.
//!
//! `cargo run -p devbay-host --example 04_plan [PLUGIN]`; without a plugin, the CPU plugin is used.

#![expect(clippy::print_stdout, reason = "an example shows what it finds")]

mod setup;

use devbay_host::internals::core::plan::Stage;
use devbay_host::{Result, Session};

fn main() -> Result<()> {
    let (_runtime, device, model) = setup::runtime_and_model()?;
    let session = Session::new(&model, &device)?;
    let image = setup::image(&session)?;
    // Planned once for the shapes of the inputs, then shared by all runs.
    let plan = session.plan_for(&[(&session.inputs()[0].name, &image)])?;
    println!("{} stages, from {} nodes", plan.stages.len(), model.program().main.nodes.len());
    for stage in &plan.stages {
        match stage {
            Stage::Section(stage) => {
                let (section, memory) = (&stage.section, stage.section.memory);
                println!("a section of {} launches in {} tasks", section.steps.len(), section.graph.len());
                for label in &section.labels {
                    println!("  {label}");
                }
                println!(
                    "arena {} bytes (at least {} live at once), constants {} bytes",
                    memory.arena, memory.lower_bound, memory.constants
                );
            }
            Stage::Compiled(stage) => {
                println!("a program of {} nodes, compiled for {}", stage.labels.len(), stage.device().name());
            }
            Stage::Control(stage) => println!("control flow: {}", stage.node.label()),
            Stage::Eager(stage) => println!("planned when its operands are there: {}", stage.node.label()),
        }
    }
    Ok(())
}
