//! `executor`, cases `two-devices`: one graph over two devices beside the same graph on each device alone.
//!
//! Both devices are the CPU plugin's: one inline, one with streams and its own memory. The graph is 100 layers of two halves
//! of 50 nodes; a node adds two values of its half of the previous layer, and every 25 layers each half takes one value of
//! the other, which is copied. Each half runs on one device. The baseline is the mean of both devices alone: as many nodes,
//! half of them on each.

use crate::measure::{Subject, passes};
use crate::ran::{self, Ran};
use crate::rows::{OURS, Rows};
use crate::setup::{self, Form};
use anyhow::{Result, ensure};
use devbay_core::device::Device;
use devbay_core::exec::host_io::InputView;
use devbay_core::program::text;
use devbay_core::tensor::Tensor;
use devbay_host::{Model, RunOptions, Runtime, Session, SessionOptions};
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

const LAYERS: usize = 100;
const HALF: usize = 50;

/// Layers between crossings, where a half takes a value of the other.
const CROSSING: usize = 25;

const MOMENT: Duration = Duration::from_millis(30);

pub fn run(rows: &mut Rows, n_passes: usize) -> Result<()> {
    for (form, division) in [("tasks", Form::Tasks), ("coarse", Form::Coarse)] {
        let case = format!("two-devices-{}/{form}", 2 * LAYERS * HALF);
        if !rows.want(&case) {
            continue;
        }
        for threads in setup::thread_counts() {
            let runtime = Runtime::builder()
                .threads(threads)
                .link(devbay_plugin_cpu::PLUGIN)
                .option("cpu", "streams", "inline,async")
                .build()?;
            let model = Model::from_program(text::parse(&source()?)?);
            let [inline, other] = [0, 1].map(|i| Arc::clone(&runtime.devices()[i]));
            let mut alone_inline = Ours::new(&model, &inline, &[], division)?;
            let mut alone_other = Ours::new(&model, &other, &[], division)?;
            let pins: Vec<String> =
                (0..LAYERS).flat_map(|layer| (0..HALF).map(move |i| name(layer, 1, i))).collect();
            let pins: Vec<(String, Arc<Device>)> =
                pins.into_iter().map(|name| (name, Arc::clone(&other))).collect();
            let mut split = Ours::new(&model, &inline, &pins, division)?;
            for ours in [&mut alone_inline, &mut alone_other, &mut split] {
                ours.run()?;
            }
            let same = alone_inline.outputs == alone_other.outputs && alone_inline.outputs == split.outputs;
            ensure!(same, "results differ");
            let n_nodes = (2 * LAYERS * HALF) as f64;
            let mut subjects = vec![
                Subject::fallible("each device alone, mean", 2.0 * n_nodes, || {
                    alone_inline.run()?;
                    alone_other.run()?;
                    Ok(())
                }),
                Subject::fallible(OURS, n_nodes, || split.run()),
            ];
            let figures = passes(&mut subjects, n_passes, MOMENT)?;
            drop(subjects);
            // Each of the three sessions runs every node once.
            let counted = alone_inline.n_launches + alone_other.n_launches + split.n_launches;
            let ran = Ran::launches(3 * 2 * LAYERS * HALF, counted);
            rows.case("executor", &case, threads, "ns/node", &figures, ran)?;
        }
    }
    Ok(())
}

fn name(layer: usize, half: usize, i: usize) -> String {
    format!("l{layer}h{half}n{i}")
}

/// Returns the graph in text form; each half returns the sum of its last layer's first two nodes.
fn source() -> Result<String> {
    let mut source = String::from("devbay-program 1\n\nprogram \"halves\"(%x: i64[1]) {\n");
    let mut outputs = Vec::new();
    for layer in 0..LAYERS {
        for half in 0..2 {
            for i in 0..HALF {
                let before = |half: usize, i: usize| match layer.checked_sub(1) {
                    None => "%x".to_owned(),
                    Some(before) => format!("%{}", name(before, half, i % HALF)),
                };
                let crosses = layer > 0 && layer % CROSSING == 0 && i == 0;
                let (a, b) = (before(half, i), before(if crosses { 1 - half } else { half }, 7 * i + 1));
                let own = name(layer, half, i);
                writeln!(source, "%{own}: i64[1] = Add@14({a}, {b}) as \"{own}\"")?;
                if layer + 1 == LAYERS {
                    outputs.push(format!("%{own}"));
                }
            }
        }
    }
    writeln!(source, "return {}\n}}", outputs.join(", "))?;
    Ok(source)
}

struct Ours {
    session: Session,
    one: Tensor,
    outputs: Vec<Vec<u8>>,
    /// Launches per run.
    n_launches: usize,
}

impl Ours {
    fn new(
        model: &Model,
        device: &Arc<Device>,
        pins: &[(String, Arc<Device>)],
        division: Form,
    ) -> Result<Self> {
        let options =
            || SessionOptions { plans: division.plans(), pins: pins.to_vec(), ..SessionOptions::default() };
        let session = Session::with_options(model, device, options())?;
        let outputs = vec![vec![0u8; 8]; session.outputs().len()];
        let one = Tensor::from_elements(&[1], &[1i64])?;
        let n_launches = ran::count(model, device, options(), &[("x", &one)])?.launches;
        Ok(Self { session, one, outputs, n_launches })
    }

    fn run(&mut self) -> Result<()> {
        let input = InputView::of(&self.one);
        let mut outputs: Vec<&mut [u8]> = self.outputs.iter_mut().map(Vec::as_mut_slice).collect();
        Ok(self.session.run_into(&[input], &mut outputs, &RunOptions::default())?)
    }
}
