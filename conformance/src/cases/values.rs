//! Launches whose data is at fault: an index that names nothing fails its stream, and breaks nothing else (B13, B21).

use crate::case::Case;
use crate::node::{How, Node, Request};
use crate::ops::{Attribute, Sample};
use crate::rig::{Device, Rig, difference};
use crate::tensor::HostTensor;
use crate::verdict::{Outcome, Why, ensure, failed, not_run};
use devbay_host::internals::core::kernel::KernelDef;
use devbay_plugin_api::abi::*;
use devbay_plugin_api::sdk::{F32, I32, I64};

pub(crate) const CASES: &[Case] = &[Case {
    id: "launch.values",
    rules: &["B9", "B13", "B21"],
    requires: "an out-of-range index fails its launch or its stream with INVALID and a message; nothing outside \
               the operands is written, and other streams continue",
    needs: &["error.stream", "launch.inputs_kept", "launch.bounds", "launch.order", "launch.workspace"],
    run: values,
}];

/// A node with integers that have to lie within bounds.
struct Probe {
    op: &'static str,
    /// The first version whose kernels are asked.
    since: u32,
    attributes: &'static [(&'static str, i64)],
    /// Extents of the inputs; the integers are input `at`.
    inputs: &'static [&'static [i64]],
    at: usize,
    output: &'static [i64],
    /// Lowest and highest of the integers.
    bounds: (i64, i64),
    /// True if integers of 32 bits are taken, too.
    narrow: bool,
}

const PROBES: &[Probe] = &[
    Probe {
        op: "Gather",
        since: 1,
        attributes: &[("axis", 1)],
        inputs: &[&[3, 4, 5], &[2, 3]],
        at: 1,
        output: &[3, 2, 3, 5],
        bounds: (-4, 3),
        narrow: true,
    },
    Probe {
        op: "GatherElements",
        since: 11,
        attributes: &[("axis", 0)],
        inputs: &[&[4, 5], &[2, 5]],
        at: 1,
        output: &[2, 5],
        bounds: (-4, 3),
        narrow: true,
    },
    Probe {
        op: "GatherND",
        since: 11,
        attributes: &[],
        inputs: &[&[4, 4, 3], &[3, 2]],
        at: 1,
        output: &[3, 3],
        bounds: (-4, 3),
        narrow: false,
    },
    Probe {
        op: "ScatterElements",
        since: 11,
        attributes: &[("axis", 1)],
        inputs: &[&[3, 6], &[3, 2], &[3, 2]],
        at: 1,
        output: &[3, 6],
        bounds: (-6, 5),
        narrow: true,
    },
    Probe {
        op: "ScatterND",
        since: 11,
        attributes: &[],
        inputs: &[&[6, 3], &[2, 1], &[2, 3]],
        at: 1,
        output: &[6, 3],
        bounds: (-6, 5),
        narrow: false,
    },
    Probe {
        op: "TensorScatter",
        since: 24,
        attributes: &[],
        inputs: &[&[2, 6, 3], &[2, 2, 3], &[2]],
        at: 2,
        output: &[2, 6, 3],
        bounds: (0, 4),
        narrow: false,
    },
    Probe {
        op: "ReverseSequence",
        since: 10,
        attributes: &[],
        inputs: &[&[5, 3, 2], &[3]],
        at: 1,
        output: &[5, 3, 2],
        bounds: (0, 5),
        narrow: false,
    },
];

impl Probe {
    /// Returns the node, whose integers are all `first` but the last, which is `last`.
    fn sample(&self, dtype: DType, first: i64, last: i64) -> Sample {
        let tensor = |(i, shape): (usize, &&[i64])| {
            let n: i64 = shape.iter().product();
            let integer = |k: i64| if k + 1 == n { last as f64 } else { first as f64 };
            match i == self.at {
                true => HostTensor::new(dtype, shape, (0..n).map(integer).collect()),
                false => HostTensor::new(F32, shape, (0..n).map(|k| k as f64 + 0.5).collect()),
            }
        };
        let n: i64 = self.output.iter().product();
        Sample {
            attributes: self.attributes.iter().map(|&(name, value)| Attribute::Int(name, value)).collect(),
            inputs: self.inputs.iter().enumerate().map(tensor).collect(),
            expected: HostTensor::new(F32, self.output, vec![0.0; n as usize]),
            bounds: vec![0.0; n as usize],
            flushed: None,
        }
    }

    /// Integers beyond the bounds, next to them and far: whatever is read of a wide one must not look like another.
    fn broken(&self, dtype: DType) -> Vec<i64> {
        let (low, high) = self.bounds;
        let mut all = vec![high + 1, low - 1, i64::from(i32::MAX), i64::from(i32::MIN)];
        if dtype == I64 {
            // Their low halves are within the bounds; a double holds them exactly.
            all.extend([1 << 32, -(1 << 32), (1 << 40) + 1, 1 << 62, i64::MIN]);
        }
        all
    }
}

fn values(rig: &Rig<'_>) -> Outcome {
    let about = rig.about()?;
    let (mut n_offered, mut n_taken) = (0, 0);
    rig.each_device(|device| {
        device.plain_memory()?;
        for probe in PROBES {
            let takes = |kernel: &KernelDef, i: usize, dtype: DType| {
                let typevar = kernel.input_typevars.get(i).and_then(|&var| kernel.typevars.get(var as usize));
                typevar.is_some_and(|dtypes| dtypes.contains(&dtype)) && !kernel.needs_value(i)
            };
            let kernels = about.kernels.iter().filter(|kernel| {
                kernel.domain.is_empty() && kernel.op == probe.op && kernel.since_version >= probe.since
            });
            for kernel in kernels.filter(|kernel| takes(kernel, 0, F32)) {
                for dtype in [I64, I32] {
                    if !takes(kernel, probe.at, dtype) || (dtype == I32 && !probe.narrow) {
                        continue;
                    }
                    n_offered += 1;
                    n_taken += usize::from(judge(device, kernel, probe, dtype)?);
                }
            }
        }
        Ok(())
    })?;
    if n_offered == 0 {
        return not_run(Why::NotOffered, "the plugin has no kernel whose input data can be invalid");
    }
    if n_taken == 0 {
        return not_run(Why::Refused, "prepare returned UNSUPPORTED for every node");
    }
    Ok(())
}

/// Judges one kernel; false if it does not take the node.
fn judge(device: &Device<'_>, kernel: &KernelDef, probe: &Probe, dtype: DType) -> Outcome<bool> {
    let (low, high) = probe.bounds;
    let good = probe.sample(dtype, high, low);
    let node: Node<'_> = match Request::new(device, kernel.idx, &good).prepare(device)? {
        Ok(node) => node,
        // As it may: the table is a superset.
        Err((DEVBAY_STATUS_UNSUPPORTED, _)) => return Ok(false),
        Err((_, words)) => return failed(format!("prepare of {}: {words}", kernel.op)),
    };
    let other = device.stream()?;
    let expected = node.run(kernel, &other, &good, How::default())?.output;
    for value in probe.broken(dtype) {
        let what = format!("{} with {value} outside {low} to {high}", kernel.op);
        // A stream of its own: it may fail for good.
        let stream = device.stream()?;
        let sample = probe.sample(dtype, high, value);
        let (status, words, damage) = node.run_to_failure(&stream, &other, &sample, |_| ())?;
        ensure!(status == DEVBAY_STATUS_INVALID, "{what} returned {}", crate::rig::status_name(status));
        ensure!(!words.is_empty(), "{what} failed without a message");
        ensure!(damage.is_empty(), "{what} damaged {damage:?}");
        drop(stream);
        // The kernel, the device and other streams are as before.
        let found = node.run(kernel, &other, &good, How::default())?.output;
        if let Some(found) = difference(&found, &expected) {
            return failed(format!("a launch after {what}: {found}"));
        }
    }
    Ok(true)
}
