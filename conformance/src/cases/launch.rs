//! Launches: what they write, what they must not, and from where they may come (B9, B12, B21).

use crate::case::Case;
use crate::node::{Damage, How, Node, Request, candidates, each_node, each_node_of};
use crate::ops::{Op, Sample};
use crate::rig::{Device, Rig, at_once, difference, status_name};
use crate::tensor::{HostTensor, from_bytes};
use crate::verdict::{Outcome, Why, ensure, failed, not_run};
use devbay_host::internals::core::kernel::KernelDef;
use devbay_plugin_api::abi::*;

pub(crate) const CASES: &[Case] = &[
    Case {
        id: "launch.inputs_kept",
        rules: &["B9", "B21"],
        requires: "a launch does not write to its inputs",
        needs: &["kernel.prepare", "transfer.offsets"],
        run: inputs_kept,
    },
    Case {
        id: "launch.bounds",
        rules: &["B9", "B10"],
        requires: "a launch writes nothing outside its operands, even if they have only the device's minimum alignment",
        needs: &["kernel.prepare", "transfer.offsets"],
        run: bounds,
    },
    Case {
        id: "launch.workspace",
        rules: &["B21"],
        requires: "a launch stays within its requested workspace, and does not depend on the workspace's contents",
        needs: &["kernel.prepare", "transfer.offsets"],
        run: workspace,
    },
    Case {
        id: "launch.repeat",
        rules: &["B20", "B21"],
        requires: "a DETERMINISTIC kernel gives the same bits every time, whatever its output contained before",
        needs: &["kernel.prepare", "transfer.offsets"],
        run: repeat,
    },
    Case {
        id: "launch.slots",
        rules: &["B2", "B20"],
        requires: "a DETERMINISTIC kernel gives the same bits with any number of host threads",
        needs: &["launch.repeat"],
        run: slots,
    },
    Case {
        id: "launch.in_place",
        rules: &["B20"],
        requires: "an output that may share an input's memory gets the same values there",
        needs: &["launch.repeat"],
        run: in_place,
    },
    Case {
        id: "launch.order",
        rules: &["B12"],
        requires: "a launch runs after work enqueued before it, and before work enqueued after it",
        needs: &["launch.repeat", "launch.bounds", "launch.workspace", "transfer.order"],
        run: order,
    },
    Case {
        id: "launch.hand_over",
        rules: &["B17"],
        requires: "a stream created by one thread can be used by another, one thread at a time",
        needs: &["launch.repeat"],
        run: hand_over,
    },
    Case {
        id: "launch.threads",
        rules: &["B17", "B21"],
        requires: "one prepared kernel can be launched from several threads and streams at once",
        needs: &["launch.hand_over", "transfer.threads"],
        run: threads,
    },
    Case {
        id: "launch.host_refs",
        rules: &["B10"],
        requires: "on a device with HOST_REFS, an input may be in host memory",
        needs: &["launch.repeat"],
        run: host_refs,
    },
    Case {
        id: "launch.cancelled",
        rules: &["B2"],
        requires: "if a loop on the host's threads returns CANCELLED, its launch returns it too, and writes \
                   nothing outside its operands",
        needs: &["launch.repeat", "launch.inputs_kept", "launch.bounds", "launch.workspace", "launch.order"],
        run: cancelled,
    },
    Case {
        id: "launch.packed",
        rules: &["B21"],
        requires: "a packed constant input gives the same result as an unpacked one",
        needs: &["launch.repeat", "launch.bounds", "launch.workspace"],
        run: packed,
    },
    Case {
        id: "launch.strides",
        rules: &["B10", "B21"],
        requires: "a STRIDED kernel gives the same result on operands that have gaps between rows, or are transposed",
        needs: &["launch.repeat", "launch.bounds", "launch.workspace"],
        run: strides,
    },
];

/// Prepares what was prepared before.
fn again<'a>(device: &'a Device<'a>, request: &Request) -> Outcome<Node<'a>> {
    match request.prepare(device)? {
        Ok(node) => Ok(node),
        Err((_, words)) => failed(format!("the second prepare failed: {words}")),
    }
}

/// Refuses damage of a kind.
fn refuse_damage(rig: &Rig<'_>, what: impl Fn(&KernelDef, Damage) -> Option<String>) -> Outcome {
    each_node(rig, Op::typical, |device, kernel, request, sample| {
        let node = again(device, request)?;
        let stream = device.stream()?;
        let ran = node.run(kernel, &stream, &sample, How { fill: 0x5c, ..How::default() })?;
        match ran.damage.iter().find_map(|&damage| what(kernel, damage)) {
            None => Ok(()),
            Some(words) => failed(words),
        }
    })
}

fn inputs_kept(rig: &Rig<'_>) -> Outcome {
    refuse_damage(rig, |kernel, damage| match damage {
        Damage::Input(i) => Some(format!("{} wrote to its input {i}", kernel.op)),
        _ => None,
    })
}

fn bounds(rig: &Rig<'_>) -> Outcome {
    refuse_damage(rig, |kernel, damage| match damage {
        Damage::Beside(i) => Some(format!("{} wrote outside its operand {i}", kernel.op)),
        _ => None,
    })
}

/// A sample that is large enough for kernels that want a workspace only then.
fn large(op: &Op, dtype: DType) -> Sample {
    op.large(dtype)
}

fn workspace(rig: &Rig<'_>) -> Outcome {
    let mut n_workspaces = 0;
    for pick in [Op::typical as fn(&Op, DType) -> Sample, large] {
        each_node(rig, pick, |device, kernel, request, sample| {
            let node = again(device, request)?;
            if node.raw.workspace_bytes == 0 {
                return Ok(());
            }
            n_workspaces += 1;
            let stream = device.stream()?;
            let mut results = Vec::new();
            // All ones are NaNs, all zeros the content of a lucky allocation.
            for fill in [0x00, 0xff] {
                let ran = node.run(kernel, &stream, &sample, How { fill, ..How::default() })?;
                ensure!(
                    !ran.damage.contains(&Damage::Workspace),
                    "{} wrote outside its workspace of {} bytes",
                    kernel.op,
                    node.raw.workspace_bytes
                );
                results.push(ran.output);
            }
            if let Some(found) = difference(&results[1], &results[0]) {
                return failed(format!("{} depends on its workspace's contents: {found}", kernel.op));
            }
            Ok(())
        })?;
    }
    if n_workspaces == 0 {
        return not_run(Why::NotOffered, "no kernel of the base set requests a workspace");
    }
    Ok(())
}

fn repeat(rig: &Rig<'_>) -> Outcome {
    each_node(rig, Op::typical, |device, kernel, request, sample| {
        if !kernel.deterministic {
            return Ok(());
        }
        let node = again(device, request)?;
        let stream = device.stream()?;
        let first = node.run(kernel, &stream, &sample, How::default())?;
        for round in 1..4u8 {
            let next = node.run(kernel, &stream, &sample, How { fill: round * 85, ..How::default() })?;
            if let Some(found) = difference(&next.output, &first.output) {
                return failed(format!("{}, launch {}: {found}", kernel.op, round + 1));
            }
        }
        Ok(())
    })
}

fn cancelled(rig: &Rig<'_>) -> Outcome {
    let mut n_loops = 0;
    each_node(rig, large, |device, kernel, request, sample| {
        let node = again(device, request)?;
        // A stream of its own: it may fail for good.
        let (stream, other) = (device.stream()?, device.stream()?);
        let desk = device.opened.desk;
        let before = desk.cancelled_loops();
        let (status, _, damage) =
            node.run_to_failure(&stream, &other, &sample, |is_launching| desk.cancel(is_launching))?;
        let n = desk.cancelled_loops() - before;
        if n == 0 {
            return Ok(());
        }
        n_loops += n;
        ensure!(
            status == DEVBAY_STATUS_CANCELLED,
            "a loop of {} returned CANCELLED, but the launch returned {}",
            kernel.op,
            status_name(status)
        );
        ensure!(damage.is_empty(), "a cancelled {} damaged {damage:?}", kernel.op);
        Ok(())
    })?;
    if n_loops == 0 {
        return not_run(Why::NotOffered, "no kernel of the base set has a loop on the host's threads");
    }
    Ok(())
}

fn slots(rig: &Rig<'_>) -> Outcome {
    let kernels = rig.about()?;
    let mut results: Vec<Vec<Vec<u8>>> = Vec::new();
    for n_slots in [1, 2, 7] {
        let opened = rig.open_with(n_slots)?;
        let mut of_slots = Vec::new();
        for device in opened.devices()? {
            device.plain_memory()?;
            let stream = device.stream()?;
            for op in crate::ops::OPS {
                // The way a loop is split does not depend on the dtype.
                for &(kernel, dtype) in candidates(kernels, op).iter().take(1) {
                    if !kernel.deterministic {
                        continue;
                    }
                    let sample = op.large(dtype);
                    if let Ok(node) = Request::new(&device, kernel.idx, &sample).prepare(&device)? {
                        of_slots.push(node.run(kernel, &stream, &sample, How::default())?.output);
                    }
                }
            }
        }
        if of_slots.is_empty() {
            return not_run(Why::NotOffered, "no kernel of the base set is DETERMINISTIC");
        }
        results.push(of_slots);
    }
    for (one, many) in results.iter().zip(&results[1..]) {
        for (one, many) in one.iter().zip(many) {
            if let Some(found) = difference(many, one) {
                return failed(format!("with a different number of threads: {found}"));
            }
        }
    }
    Ok(())
}

fn in_place(rig: &Rig<'_>) -> Outcome {
    let mut n_in_place = 0;
    each_node(rig, Op::typical, |device, kernel, request, sample| {
        let Some(&Some(input)) = kernel.in_place.first() else {
            return Ok(());
        };
        // The operands have one size, which broadcasting changes.
        if sample.inputs.get(input).is_none_or(|tensor| tensor.shape != sample.expected.shape) {
            return Ok(());
        }
        n_in_place += 1;
        let node = again(device, request)?;
        let stream = device.stream()?;
        let apart = node.run(kernel, &stream, &sample, How::default())?;
        let within = node.run(kernel, &stream, &sample, How { in_place: Some(input), ..How::default() })?;
        match difference(&within.output, &apart.output) {
            None => Ok(()),
            Some(found) => failed(format!("{} in the memory of input {input}: {found}", kernel.op)),
        }
    })?;
    if n_in_place == 0 {
        return not_run(Why::NotOffered, "no kernel of the base set works in place");
    }
    Ok(())
}

fn order(rig: &Rig<'_>) -> Outcome {
    // An op with one input, whose result can be its input again.
    each_node_of(
        rig,
        |op| op.n_inputs() == 1 && op.name != "Transpose",
        large,
        |device, kernel, request, sample| {
            let node = again(device, request)?;
            if node.raw.workspace_bytes > 0 {
                return Ok(());
            }
            let size = sample.expected.size();
            let padded = device.pad(size);
            let mut content = sample.inputs[0].bytes();
            content.resize(padded, 0);
            let other = vec![0u8; padded];
            let mut late = crate::rig::Lent::new(vec![0u8; padded]);
            let (x, y) = (device.alloc(padded)?, device.alloc(padded)?);
            let stream = device.stream()?;
            let expected = node.run(kernel, &stream, &sample, How::default())?.output;
            let refs = [x.part(0, size), y.part(0, size)];
            for _ in 0..4 {
                // Nothing waits between these: the launch finds the content, the last copy finds its result, and later
                // writes come too late for both.
                // SAFETY: images, buffers and `late` were made before the stream, whose drop waits for its work.
                unsafe { stream.enqueue_in(&other, x.whole()) }?;
                // SAFETY: `content` and the buffer were made before the stream.
                unsafe { stream.enqueue_in(&content, x.whole()) }?;
                node.launch(kernel, &stream, &refs)?;
                // SAFETY: `other` and the buffer were made before the stream.
                unsafe { stream.enqueue_in(&other, x.whole()) }?;
                // SAFETY: the buffer and `late` were made before the stream.
                unsafe { stream.enqueue_out(y.whole(), late.0.as_mut_ptr(), padded) }?;
                // SAFETY: `other` and the buffer were made before the stream.
                unsafe { stream.enqueue_in(&other, y.whole()) }?;
            }
            stream.finish()?;
            let found = late.done();
            match difference(&found[..size], &expected) {
                None => Ok(()),
                Some(found) => failed(format!("{} between copies: {found}", kernel.op)),
            }
        },
    )
}

fn threads(rig: &Rig<'_>) -> Outcome {
    rig.allows_threads()?;
    each_node(rig, Op::typical, |device, kernel, request, sample| {
        let node = again(device, request)?;
        let streams = device.streams(4)?;
        let Some(first) = streams.first() else {
            return failed("the device creates no stream");
        };
        let expected = node.run(kernel, first, &sample, How::default())?.output;
        let (node, sample, expected) = (&node, &sample, &expected);
        let many = |stream| -> Outcome {
            for _ in 0..10 {
                let found = node.run(kernel, stream, sample, How::default())?.output;
                let difference = difference(&found, expected).filter(|_| kernel.deterministic);
                if let Some(found) = difference {
                    return failed(format!("{} during other launches: {found}", kernel.op));
                }
            }
            Ok(())
        };
        at_once(streams.iter(), many).map(drop)
    })
}

fn hand_over(rig: &Rig<'_>) -> Outcome {
    each_node(rig, Op::typical, |device, kernel, request, sample| {
        let node = again(device, request)?;
        let stream = device.stream()?;
        let expected = node.run(kernel, &stream, &sample, How::default())?.output;
        let (node, stream, sample) = (&node, &stream, &sample);
        let elsewhere = std::thread::scope(|scope| {
            let thread = scope.spawn(move || node.run(kernel, stream, sample, How::default()));
            thread.join().unwrap_or_else(|_| failed("a thread of the suite panicked"))
        })?;
        match difference(&elsewhere.output, &expected).filter(|_| kernel.deterministic) {
            None => Ok(()),
            Some(found) => failed(format!("{} on another thread: {found}", kernel.op)),
        }
    })
}

fn host_refs(rig: &Rig<'_>) -> Outcome {
    let mut n_devices = 0;
    each_node(rig, Op::typical, |device, kernel, request, sample| {
        if device.info.flags & DEVBAY_DEVICE_HOST_REFS == 0 {
            return Ok(());
        }
        n_devices += 1;
        let node = again(device, request)?;
        let stream = device.stream()?;
        let expected = node.run(kernel, &stream, &sample, How::default())?.output;
        let found = node.run(kernel, &stream, &sample, How { host_refs: true, ..How::default() })?;
        match difference(&found.output, &expected).filter(|_| kernel.deterministic) {
            None => Ok(()),
            Some(found) => failed(format!("{} on host memory: {found}", kernel.op)),
        }
    })?;
    if n_devices == 0 {
        return not_run(Why::NotOffered, "no device has HOST_REFS");
    }
    Ok(())
}

fn packed(rig: &Rig<'_>) -> Outcome {
    let pack = rig.optional(rig.table()?.pack, "pack")?;
    let mut n_packed = 0;
    each_node_of(
        rig,
        |op| op.n_inputs() == 2,
        large,
        |device, kernel, request, sample| {
            let plain = again(device, request)?;
            let mut constant = Request::new(device, kernel.idx, &sample);
            let bytes = sample.inputs[1].bytes();
            constant.make_constant(1, bytes.clone());
            let node = again(device, &constant)?;
            // SAFETY: the plugin keeps the list until `unprepare`, which comes with the node's drop.
            let packs = match unsafe { read_growable_list::<ConstantPack>(&node.raw.packs) } {
                Ok(packs) => packs,
                Err(error) => {
                    return failed(format!("invalid list of packed constants of {}: {error}", kernel.op));
                }
            };
            let Some(wanted) = packs.first() else {
                return Ok(());
            };
            ensure!(
                wanted.input_idx == 1,
                "{} packs input {}, which is not constant",
                kernel.op,
                wanted.input_idx
            );
            ensure!(
                wanted.align == 0 || wanted.align.is_power_of_two(),
                "{} packs to an alignment of {}, expected a power of two",
                kernel.op,
                wanted.align
            );
            n_packed += 1;
            const GUARD: usize = 64;
            let (size, align) = (wanted.size_bytes as usize, wanted.align.max(1) as usize);
            let mut room = vec![0u8; align + size + GUARD];
            let from = room.as_ptr().align_offset(align);
            room[from + size..].fill(0xa5);
            // SAFETY: `from + size` bytes are in the room.
            let dst = unsafe { room.as_mut_ptr().add(from) };
            let mut detail = crate::rig::Detail::new();
            let instance = device.opened.handle.as_ptr();
            let src = &constant.inputs[1];
            // SAFETY: the plugin's function with the node that it prepared; `dst` is zeroed and as large and aligned as
            // asked.
            let status = unsafe { pack(instance, &node.raw, 1, src, dst.cast(), &mut detail.raw) };
            ensure!(status == DEVBAY_STATUS_OK, "pack returned {}", detail.describe(status));
            ensure!(
                room[from + size..].iter().all(|&byte| byte == 0xa5),
                "{} packed beyond its requested {size} bytes",
                kernel.op
            );
            // SAFETY: `dst` is the same memory; input 0 was not asked for.
            let refusal = unsafe { pack(instance, &node.raw, 0, src, dst.cast(), std::ptr::null_mut()) };
            ensure!(refusal == DEVBAY_STATUS_INVALID, "pack accepted an input that the kernel does not pack");

            let stream = device.stream()?;
            let expected = plain.run(kernel, &stream, &sample, How::default())?.output;
            let found = run_packed(device, &node, kernel, &sample, &room[from..from + size])?;
            // Packing may change the order of a sum, so the bound is the op's.
            let values = crate::tensor::from_bytes(sample.expected.dtype, &found);
            let plain = crate::tensor::from_bytes(sample.expected.dtype, &expected);
            let wrong = (0..values.len()).find(|&i| {
                // A NaN is within no bound.
                let within = (values[i] - plain[i]).abs() <= 2.0 * sample.bounds[i];
                !within
            });
            match wrong {
                None => Ok(()),
                Some(i) => failed(format!(
                    "{} with a packed constant: element {i} is {}, without packing it is {}",
                    kernel.op, values[i], plain[i]
                )),
            }
        },
    )?;
    if n_packed == 0 {
        return not_run(Why::NotOffered, "no kernel of the base set packs its constants");
    }
    Ok(())
}

/// Launches a node whose second input is packed.
fn run_packed(
    device: &Device<'_>,
    node: &Node<'_>,
    kernel: &KernelDef,
    sample: &Sample,
    packed: &[u8],
) -> Outcome<Vec<u8>> {
    let stage = |bytes: &[u8]| {
        let mut bytes = bytes.to_vec();
        bytes.resize(device.pad(bytes.len()), 0);
        bytes
    };
    let (a, b) = (stage(&sample.inputs[0].bytes()), stage(packed));
    let (x, y) = (device.alloc(a.len())?, device.alloc(sample.expected.size())?);
    // SAFETY: the plugin keeps the list until `unprepare`, which comes with the node's drop.
    let align = unsafe { read_growable_list::<ConstantPack>(&node.raw.packs) }
        .map_or(1, |packs| packs.first().map_or(1, |pack| pack.align));
    let mut detail = crate::rig::Detail::new();
    let align = align.max(device.space().alloc_align);
    let (status, out) = device.try_alloc(0, b.len() as u64, align, &mut detail)?;
    ensure!(status == DEVBAY_STATUS_OK, "buffer_alloc for a packed constant: {}", detail.describe(status));
    let weight = device.own(out, b.len())?;
    let workspace = device.alloc((node.raw.workspace_bytes as usize).max(1))?;
    let stream = device.stream()?;
    stream.upload(&a, &x, 0)?;
    stream.upload(&b, &weight, 0)?;
    let mut refs = vec![
        x.part(0, sample.inputs[0].size()),
        weight.part(0, packed.len()),
        y.part(0, sample.expected.size()),
    ];
    if node.raw.workspace_bytes > 0 {
        refs.push(workspace.part(0, node.raw.workspace_bytes as usize));
    }
    node.launch(kernel, &stream, &refs)?;
    stream.finish()?;
    let mut found = stream.download(&y, 0, y.size)?;
    found.truncate(sample.expected.size());
    Ok(found)
}

/// A layout of a tensor of two dimensions: strides in elements, and how many elements it takes from first to last.
struct Layout {
    name: &'static str,
    strides: [i64; 2],
}

impl Layout {
    /// Rows with a gap behind each, and columns one after the other.
    fn all(rows: i64, columns: i64) -> [Self; 2] {
        [
            Self { name: "rows with gaps between them", strides: [columns + 3, 1] },
            Self { name: "transposed operands", strides: [1, rows] },
        ]
    }

    /// Returns the elements as they stand, with numbers that no result has between them.
    fn spread(&self, tensor: &HostTensor) -> HostTensor {
        let (rows, columns) = (tensor.shape[0], tensor.shape[1]);
        let n = (rows - 1) * self.strides[0] + (columns - 1) * self.strides[1] + 1;
        let mut values = vec![111.0; n as usize];
        for (i, &value) in tensor.values.iter().enumerate() {
            let (row, column) = (i as i64 / columns, i as i64 % columns);
            values[(row * self.strides[0] + column * self.strides[1]) as usize] = value;
        }
        HostTensor { dtype: tensor.dtype, shape: vec![n], values }
    }
}

fn strides(rig: &Rig<'_>) -> Outcome {
    let mut n_strided = 0;
    each_node(rig, Op::typical, |device, kernel, request, sample| {
        let is_matrix = |tensor: &HostTensor| tensor.shape.len() == 2;
        if !kernel.strided || !sample.inputs.iter().chain([&sample.expected]).all(is_matrix) {
            return Ok(());
        }
        n_strided += 1;
        let stream = device.stream()?;
        let dense = again(device, request)?.run(kernel, &stream, &sample, How::default())?;
        let dense = from_bytes(sample.expected.dtype, &dense.output);
        for i in 0..2 {
            let layout = |tensor: &HostTensor| {
                let [rows, columns] = Layout::all(tensor.shape[0], tensor.shape[1]);
                if i == 0 { rows } else { columns }
            };
            let layouts: Vec<Layout> = sample.inputs.iter().chain([&sample.expected]).map(layout).collect();
            let mut request = Request::new(device, kernel.idx, &sample);
            for (tensor, layout) in request.inputs.iter_mut().chain(&mut request.outputs).zip(&layouts) {
                tensor.strides = layout.strides.as_ptr();
            }
            let node = match request.prepare(device)? {
                Ok(node) => node,
                Err((_, words)) => {
                    return failed(format!("{} on {}: {words}", kernel.op, layouts[0].name));
                }
            };
            let expected = layouts[sample.inputs.len()].spread(&sample.expected);
            let spread = Sample {
                attributes: sample.attributes.clone(),
                inputs: sample
                    .inputs
                    .iter()
                    .zip(&layouts)
                    .map(|(tensor, layout)| layout.spread(tensor))
                    .collect(),
                bounds: vec![0.0; expected.values.len()],
                flushed: None,
                expected,
            };
            let ran = node.run(kernel, &stream, &spread, How { fill: 0x11, ..How::default() })?;
            let found = from_bytes(sample.expected.dtype, &ran.output);
            let strides = layouts[sample.inputs.len()].strides;
            let columns = sample.expected.shape[1] as usize;
            let wrong = dense.iter().enumerate().find(|(i, expected)| {
                let at = (i / columns) as i64 * strides[0] + (i % columns) as i64 * strides[1];
                found[at as usize] != **expected
            });
            if let Some((i, expected)) = wrong {
                return failed(format!(
                    "{} on {}: expected element {i} to be {expected}",
                    kernel.op, layouts[0].name
                ));
            }
            ensure!(ran.damage.is_empty(), "{} on {}: {:?}", kernel.op, layouts[0].name, ran.damage);
        }
        Ok(())
    })?;
    if n_strided == 0 {
        return not_run(Why::NotOffered, "no kernel of the base set accepts strides");
    }
    Ok(())
}
