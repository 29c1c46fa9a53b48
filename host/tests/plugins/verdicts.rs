//! One model has one verdict: what an index names is answered, and one that names nothing is an error, of the same kind on
//! every device that the machine has, after which the session goes on.
//!
//! Generated: every op with index operands, both widths of integers, and values at and beyond both ends, among them wide
//! ones whose low half is in range. What has to come is calculated from the bounds, and results are compared with those of
//! the CPU plugin.

use crate::every_device::{every_plugin, first_devices};
use devbay_host::internals::core::program::text;
use devbay_host::internals::core::tensor::BOOL;
use devbay_host::{Device, Error, ErrorKind, Model, Session, SessionOptions, Tensor};
use std::sync::Arc;

/// An op whose integers have to lie within bounds.
struct Probe {
    op: &'static str,
    attributes: &'static str,
    /// Extents of the inputs, whose integers are input `at`.
    inputs: &'static [&'static [usize]],
    at: usize,
    output: &'static str,
    /// Lowest and highest; None if every integer means something.
    bounds: Option<(i64, i64)>,
    /// True if 32-bit integers are supported.
    narrow: bool,
    /// Plugins beside the CPU's that have to run it themselves.
    on: &'static [&'static str],
}

const GATHERS: &[&str] = &["wgpu", "pjrt"];

const PROBES: &[Probe] = &[
    Probe {
        op: "Gather@13",
        attributes: "axis = 1",
        inputs: &[&[2, 4, 3], &[3]],
        at: 1,
        output: "2,3,3",
        bounds: Some((-4, 3)),
        narrow: true,
        on: &["wgpu", "opencl", "pjrt"],
    },
    Probe {
        op: "GatherElements@13",
        attributes: "axis = 0",
        inputs: &[&[4, 3], &[2, 3]],
        at: 1,
        output: "2,3",
        bounds: Some((-4, 3)),
        narrow: true,
        on: GATHERS,
    },
    Probe {
        op: "GatherND@13",
        attributes: "batch_dims = 0",
        inputs: &[&[4, 4, 2], &[3, 2]],
        at: 1,
        output: "3,2",
        bounds: Some((-4, 3)),
        narrow: false,
        on: GATHERS,
    },
    Probe {
        op: "ScatterElements@18",
        attributes: "axis = 1",
        inputs: &[&[2, 6], &[2, 2], &[2, 2]],
        at: 1,
        output: "2,6",
        bounds: Some((-6, 5)),
        narrow: true,
        on: GATHERS,
    },
    // More updates than each element looks through, which are listed by place.
    Probe {
        op: "ScatterElements@18",
        attributes: r#"axis = 0, reduction = "add""#,
        inputs: &[&[6, 2], &[40, 2], &[40, 2]],
        at: 1,
        output: "6,2",
        bounds: Some((-6, 5)),
        narrow: true,
        on: GATHERS,
    },
    Probe {
        op: "ScatterND@18",
        attributes: r#"reduction = "none""#,
        inputs: &[&[6, 2], &[3, 1], &[3, 2]],
        at: 1,
        output: "6,2",
        bounds: Some((-6, 5)),
        narrow: false,
        on: GATHERS,
    },
    Probe {
        op: "TensorScatter@24",
        attributes: r#"axis = 1, mode = "linear""#,
        inputs: &[&[3, 6, 2], &[3, 2, 2], &[3]],
        at: 2,
        output: "3,6,2",
        bounds: Some((0, 4)),
        narrow: false,
        on: &["wgpu"],
    },
    Probe {
        op: "TensorScatter@24",
        attributes: r#"axis = 1, mode = "circular""#,
        inputs: &[&[3, 6, 2], &[3, 2, 2], &[3]],
        at: 2,
        output: "3,6,2",
        bounds: Some((0, i64::MAX)),
        narrow: false,
        on: &["wgpu"],
    },
    Probe {
        op: "ReverseSequence@28",
        attributes: "batch_axis = 1, time_axis = 0",
        inputs: &[&[4, 3, 2], &[3]],
        at: 1,
        output: "4,3,2",
        bounds: Some((0, 4)),
        narrow: false,
        on: GATHERS,
    },
    Probe {
        op: "RotaryEmbedding@23",
        attributes: "interleaved = 0",
        inputs: &[&[1, 2, 3, 4], &[5, 2], &[5, 2], &[1, 3]],
        at: 3,
        output: "1,2,3,4",
        bounds: Some((0, 4)),
        narrow: false,
        on: &["wgpu"],
    },
];

impl Probe {
    fn program(&self, bits: u32) -> String {
        let inputs = self.inputs.iter().enumerate();
        let typed = inputs.clone().map(|(i, shape)| {
            let extents: Vec<String> = shape.iter().map(ToString::to_string).collect();
            let element = if i == self.at { format!("i{bits}") } else { "f32".to_owned() };
            format!("%x{i}: {element}[{}]", extents.join(","))
        });
        let names: Vec<String> = inputs.map(|(i, _)| format!("%x{i}")).collect();
        let typed: Vec<String> = typed.collect();
        format!(
            "devbay-program 1\n\nprogram \"p\"({}) {{\n  %y: f32[{}] = {}({}) as \"node\" {{{}}}\n  return %y\n}}\n",
            typed.join(", "),
            self.output,
            self.op,
            names.join(", "),
            self.attributes
        )
    }

    /// All inputs; the integers are in range, but that at `place`.
    fn inputs(&self, bits: u32, place: usize, value: i64) -> Vec<Tensor> {
        let tensor = |(i, shape): (usize, &&[usize])| {
            let n: usize = shape.iter().product();
            if i != self.at {
                let numbers: Vec<f32> = (0..n).map(|k| k as f32 * 0.5 - 3.0).collect();
                return Tensor::from_elements(shape, &numbers);
            }
            let integer = |k: usize| if k == place { value } else { (k % 4) as i64 };
            match bits {
                32 => Tensor::from_elements(shape, &(0..n).map(|k| integer(k) as i32).collect::<Vec<_>>()),
                _ => Tensor::from_elements(shape, &(0..n).map(integer).collect::<Vec<_>>()),
            }
        };
        self.inputs.iter().enumerate().map(|input| tensor(input).expect("a tensor")).collect()
    }

    /// Integers at both ends, and beyond them.
    fn values(&self, bits: u32) -> Vec<i64> {
        let (low, high) = self.bounds.unwrap_or((-4, 3));
        let narrow = [0, -1, low, high, low.saturating_sub(1), high.saturating_add(1)];
        let ends = [i64::from(i32::MAX), i64::from(i32::MIN)];
        let wide = [1 << 31, 1 << 32, (1 << 32) + 1, -(1 << 32), 1 << 40, 1 << 62, i64::MIN, i64::MAX];
        let mut all: Vec<i64> = narrow.into_iter().chain(ends).collect();
        all.extend(wide.iter().filter(|_| bits == 64));
        all.retain(|&value| bits == 64 || i32::try_from(value).is_ok());
        all.sort_unstable();
        all.dedup();
        all
    }
}

fn is_of(device: &Device, plugins: &[&str]) -> bool {
    device.name().split(':').next().is_some_and(|plugin| plugins.contains(&plugin))
}

fn session(program: &str, device: &Arc<Device>, cpu: &Arc<Device>, pinned: bool) -> Result<Session, Error> {
    let model = Model::from_program(text::parse(program).unwrap_or_else(|e| panic!("{e}\n{program}")));
    let options = SessionOptions {
        others: vec![Arc::clone(cpu)],
        pins: pinned.then(|| ("node".to_owned(), Arc::clone(device))).into_iter().collect(),
        // A device whose input is at fault has not failed.
        failover: Some(vec![Arc::clone(cpu)]),
        ..SessionOptions::default()
    };
    Session::with_options(&model, device, options)
}

fn run(session: &Session, inputs: &[Tensor]) -> Result<Vec<f32>, Error> {
    let names: Vec<String> = (0..inputs.len()).map(|i| format!("x{i}")).collect();
    let given: Vec<(&str, &Tensor)> = names.iter().map(String::as_str).zip(inputs).collect();
    let results = session.run(&given)?;
    Ok(results[0].elements::<f32>().expect("floats").to_vec())
}

#[test]
fn an_index_has_one_verdict_on_all_devices() {
    let runtime = every_plugin();
    let devices = first_devices(&runtime);
    let mut wrong = Vec::new();
    let mut n_judged = 0;
    for probe in PROBES {
        let widths: &[u32] = if probe.narrow { &[64, 32] } else { &[64] };
        for &bits in widths {
            let program = probe.program(bits);
            let sessions: Vec<Session> = devices
                .iter()
                .map(|device| {
                    let made = session(&program, device, &devices[0], is_of(device, probe.on));
                    made.unwrap_or_else(|error| panic!("{} on {}: {error}", probe.op, device.name()))
                })
                .collect();
            let n: usize = probe.inputs[probe.at].iter().product();
            for value in probe.values(bits) {
                let place = n - 1;
                let inputs = probe.inputs(bits, place, value);
                let names_something = probe.bounds.is_none_or(|(low, high)| (low..=high).contains(&value));
                let expected = run(&sessions[0], &inputs);
                for (device, session) in devices.iter().zip(&sessions) {
                    n_judged += 1;
                    let found = run(session, &inputs);
                    let of = format!(
                        "{} {} i{bits} with {value} on {}",
                        probe.op,
                        probe.attributes,
                        device.name()
                    );
                    match (&found, &expected) {
                        (Ok(found), Ok(expected)) if names_something && found == expected => {}
                        (Err(error), _) if !names_something && error.kind() == ErrorKind::InvalidInput => {
                            if !error.to_string().contains(&value.to_string()) && !is_of(device, &["pjrt"]) {
                                wrong.push(format!("{of}: the value is not named: {error}"));
                            }
                        }
                        _ => wrong.push(format!("{of}: {found:?}, the CPU {expected:?}")),
                    }
                    if !session.failures().is_empty() {
                        wrong.push(format!("{of}: the device was given up"));
                    }
                }
            }
            // Every session goes on.
            let good = probe.inputs(bits, 0, 1);
            let expected = run(&sessions[0], &good).expect("indices that name something");
            for (device, session) in devices.iter().zip(&sessions) {
                if run(session, &good).ok().as_ref() != Some(&expected) {
                    wrong.push(format!("{} on {} does not go on", probe.op, device.name()));
                }
            }
        }
    }
    let names: Vec<&str> = devices.iter().map(|device| device.name()).collect();
    eprintln!("{n_judged} verdicts on {}", names.join(", "));
    assert!(wrong.is_empty(), "{} of {n_judged}:\n{}", wrong.len(), wrong.join("\n"));
}

/// A chain of ops in which the second is at fault, of data that the device has made: the report is of the launch behind it.
const CHAIN: &str = r#"devbay-program 1

program "p"(%x0: f32[4,3], %x1: i64[2], %x2: i64[2]) {
  %a: f32[4,3] = Relu@14(%x0)
  %b: f32[2,3] = Gather@13(%a, %x1) as "first" {axis = 0}
  %c: f32[2,3] = Exp@13(%b)
  %y: f32[2,2] = Gather@13(%c, %x2) as "second" {axis = 1}
  return %y
}
"#;

#[test]
fn the_op_at_fault_is_named() {
    let runtime = every_plugin();
    let devices = first_devices(&runtime);
    let tensor = |a: i64, b: i64| Tensor::from_elements(&[2], &[a, b]).expect("a tensor");
    let x = Tensor::from_elements(&[4, 3], &[0.5f32; 12]).expect("a tensor");
    for device in &devices {
        let session = session(CHAIN, device, &devices[0], false).expect("a session");
        let run =
            |first, second| run(&session, &[x.clone(), first, second]).map_err(|error| error.to_string());
        // Several runs of a frame, so that a device's recordings are replayed.
        for round in 0..4 {
            let good = run(tensor(3, -4), tensor(-3, 2));
            assert!(good.is_ok(), "{} in round {round}: {good:?}", device.name());
        }
        let both = run(tensor(3, 4), tensor(3, 2)).expect_err("an index of nothing");
        let second = run(tensor(3, -4), tensor(-4, 2)).expect_err("an index of nothing");
        // OpenCL's says the op and the index, and not the node.
        if !is_of(device, &["opencl"]) {
            assert!(both.contains("first"), "{}: {both}", device.name());
            assert!(second.contains("second"), "{}: {second}", device.name());
        }
        let good = run(tensor(3, -4), tensor(-3, 2));
        assert!(good.is_ok(), "{} does not go on: {good:?}", device.name());
    }
}

/// An index that is constant, and names nothing: always read, or in a branch that is not taken.
const CONSTANT: &str = r#"devbay-program 1

program "p"(%x0: f32[4,3]) {
  %i = const i64[2] [1, 4]
  %y: f32[2,3] = Gather@13(%x0, %i) as "node" {axis = 0}
  return %y
}
"#;
const IN_A_BRANCH: &str = r#"devbay-program 1

program "p"(%x0: f32[4,3], %x1: bool[]) {
  %i = const i64[2] [1, 4]
  %y: f32[2,3] = If@25(%x1) then_branch() {
    %a: f32[2,3] = Gather@13(%x0, %i) as "node" {axis = 0}
    return %a
  } else_branch() {
    %j = const i64[2] [1, 3]
    %b: f32[2,3] = Gather@13(%x0, %j) as "other" {axis = 0}
    return %b
  }
  return %y
}
"#;

#[test]
fn a_constant_index_has_one_verdict_too() {
    let runtime = every_plugin();
    let devices = first_devices(&runtime);
    let x = Tensor::from_elements(&[4, 3], &[0.5f32; 12]).expect("a tensor");
    let truth = |truth: bool| Tensor::from_bytes(BOOL, &[], &[u8::from(truth)]).expect("a tensor");
    for device in &devices {
        let made = session(CONSTANT, device, &devices[0], false);
        let error = made
            .and_then(|session| run(&session, std::slice::from_ref(&x)))
            .expect_err("an index of nothing");
        assert_eq!(error.kind(), ErrorKind::InvalidModel, "{}: {error}", device.name());
        assert!(error.to_string().contains("node"), "{}: {error}", device.name());
        // Nodes that do not run report nothing.
        let session = session(IN_A_BRANCH, device, &devices[0], false).expect("a session");
        let other = run(&session, &[x.clone(), truth(false)]);
        assert!(other.is_ok(), "{}: {other:?}", device.name());
        let error = run(&session, &[x.clone(), truth(true)]).expect_err("an index of nothing");
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{}: {error}", device.name());
    }
}
