//! The table of kernels, and what `prepare` and its like answer (B20, B21).

use crate::case::Case;
use crate::node::{Request, each_node, each_node_of, prepare_raw};
use crate::ops::Op;
use crate::rig::{AnySize, Detail, Device, Rig, at_once, status_name};
use crate::verdict::{Outcome, Why, ensure, failed, not_run};
use devbay_host::internals::core::program::catalogue;
use devbay_plugin_api::abi::*;
use std::ptr::null_mut;

pub(crate) const CASES: &[Case] = &[
    Case {
        id: "kernel.table",
        rules: &["B20"],
        requires: "every kernel has an op, a version, operands with type variables, and valid dtypes",
        needs: &["load.structs", "load.required", "load.name"],
        run: table,
    },
    Case {
        id: "kernel.operands",
        rules: &["B20"],
        requires: "a kernel of a known op requires the op's required operands, and accepts no more than the op has",
        needs: &["kernel.table"],
        run: operands,
    },
    Case {
        id: "kernel.listed",
        rules: &["B4", "B20"],
        requires: "a device lists only kernels that are in the plugin's list or described, and a second call \
                   gives the same list",
        needs: &["kernel.table", "devices.list"],
        run: listed,
    },
    Case {
        id: "kernel.prepare",
        rules: &["B21"],
        requires: "`prepare` accepts plain shapes for kernels of the base set, in each of their dtypes",
        needs: &["kernel.table", "devices.list"],
        run: prepare,
    },
    Case {
        id: "kernel.prepare.index",
        rules: &["B18", "B21"],
        requires: "a kernel index outside the table is refused, and the result stays zero",
        needs: &["kernel.prepare"],
        run: index,
    },
    Case {
        id: "kernel.prepare.dtype",
        rules: &["B5", "B21"],
        requires: "an unknown dtype is refused with UNSUPPORTED or INVALID, and a message",
        needs: &["kernel.prepare"],
        run: dtype,
    },
    Case {
        id: "kernel.prepare.attribute",
        rules: &["B5", "B21"],
        requires: "an attribute of an unknown kind, or with a name that no op has, is refused with UNSUPPORTED",
        needs: &["kernel.prepare"],
        run: attribute,
    },
    Case {
        id: "kernel.prepare.shape",
        rules: &["B21"],
        requires: "`prepare` checks everything: it refuses shapes that the op does not allow, or that overflow",
        needs: &["kernel.prepare"],
        run: shape,
    },
    Case {
        id: "kernel.prepare.sizes",
        rules: &["B4"],
        requires: "`prepare` accepts descriptions and tensors of older and newer hosts, and writes only within \
                   its result",
        needs: &["kernel.prepare"],
        run: sizes,
    },
    Case {
        id: "kernel.prepare.threads",
        rules: &["B17", "B21"],
        requires: "many threads can prepare and release kernels at once",
        needs: &["kernel.prepare"],
        run: threads,
    },
    Case {
        id: "kernel.cost",
        rules: &["B20"],
        requires: "an estimated cost matches the operands: bytes written, and the flops of a product",
        needs: &["kernel.prepare"],
        run: cost,
    },
    Case {
        id: "kernel.shape",
        rules: &["B20"],
        requires: "a shape function agrees with the op, and writes only within its given capacity",
        needs: &["kernel.prepare"],
        run: shape_function,
    },
];

fn operands(rig: &Rig<'_>) -> Outcome {
    let mut n = 0;
    for kernel in rig.about()?.kernels.iter() {
        let def = catalogue::find(&kernel.domain, &kernel.op);
        let Some(row) = devbay_ops::find(&kernel.domain, &kernel.op) else { continue };
        // An older definition may have other operands, and some kernels take anything.
        let is_of_row = def.is_some_and(|def| catalogue::accepts(def, kernel.since_version));
        let takes_anything = kernel.n_inputs == (0, DEVBAY_VARIADIC);
        if !is_of_row || takes_anything {
            continue;
        }
        n += 1;
        if let Err(words) = row.check_counts(kernel.n_inputs, kernel.n_outputs) {
            return failed(format!("kernel {} ({}): {words}", kernel.idx, kernel.op));
        }
    }
    if n == 0 {
        return not_run(Why::NotOffered, "the plugin has no kernel of a known op");
    }
    Ok(())
}

/// Dtypes that DLPack's codes and this header know.
fn exists(dtype: DType) -> bool {
    let DType { code, bits, lanes } = dtype;
    let widths: &[u8] = match code {
        DEVBAY_DTYPE_INT | DEVBAY_DTYPE_UINT => &[2, 4, 8, 16, 32, 64],
        DEVBAY_DTYPE_FLOAT => &[16, 32, 64],
        DEVBAY_DTYPE_BFLOAT => &[16],
        DEVBAY_DTYPE_COMPLEX => &[64, 128],
        DEVBAY_DTYPE_BOOL => &[8],
        DEVBAY_DTYPE_FLOAT8_E4M3FN..=DEVBAY_DTYPE_FLOAT8_E8M0FNU => &[8],
        DEVBAY_DTYPE_FLOAT4_E2M1FN => &[4],
        // A code of the future.
        _ => return lanes == 1,
    };
    lanes == 1 && widths.contains(&bits)
}

fn table(rig: &Rig<'_>) -> Outcome {
    let kernels = &rig.about()?.kernels;
    if kernels.is_empty() {
        return not_run(Why::NotOffered, "the plugin lists no kernels");
    }
    for kernel in kernels.iter() {
        let name = format!("kernel {} ({})", kernel.idx, kernel.op);
        ensure!(!kernel.op.is_empty(), "kernel {} has no op", kernel.idx);
        ensure!(kernel.since_version > 0, "{name} has op version 0");
        for (what, (min, max), vars) in [
            ("inputs", kernel.n_inputs, &kernel.input_typevars),
            ("outputs", kernel.n_outputs, &kernel.output_typevars),
        ] {
            ensure!(min <= max, "{name} accepts {min} to {max} {what}");
            let named = if max == DEVBAY_VARIADIC { 1 } else { max as usize };
            // Fewer than `max` means that the last is repeated.
            ensure!(
                named == 0 || !vars.is_empty(),
                "{name} accepts up to {named} {what}, none of which has a type variable"
            );
            ensure!(
                max == DEVBAY_VARIADIC || vars.len() <= max as usize,
                "{name} has type variables for {} {what}, but accepts at most {max}",
                vars.len()
            );
            for &var in vars {
                ensure!(
                    (var as usize) < kernel.typevars.len(),
                    "{name}: one of its {what} has type variable {var} of {}",
                    kernel.typevars.len()
                );
            }
        }
        for dtypes in &kernel.typevars {
            ensure!(!dtypes.is_empty(), "{name} has a type variable without dtypes");
            if let Some(wrong) = dtypes.iter().find(|dtype| !exists(**dtype)) {
                return failed(format!("{name} lists an invalid dtype: {wrong:?}"));
            }
        }
        for (output, input) in kernel.in_place.iter().enumerate() {
            let Some(input) = input else { continue };
            let max = kernel.n_inputs.1;
            ensure!(
                max == DEVBAY_VARIADIC || (*input as u64) < u64::from(max),
                "{name}: output {output} may share the memory of the nonexistent input {input}"
            );
        }
        let inputs = kernel.n_inputs.1.min(64);
        ensure!(
            inputs == 64 || kernel.host_value_inputs >> inputs == 0,
            "{name} requests values of nonexistent inputs: {:#b}",
            kernel.host_value_inputs
        );
    }
    Ok(())
}

fn prepare(rig: &Rig<'_>) -> Outcome {
    each_node(rig, Op::typical, |_, _, _, _| Ok(()))
}

/// Refuses an answer other than UNSUPPORTED or INVALID, with words.
fn refused(rig: &Rig<'_>, what: &str, wrong: impl Fn(&mut Request)) -> Outcome {
    each_node(rig, Op::typical, |device, kernel, _, sample| {
        let mut request = Request::new(device, kernel.idx, &sample);
        wrong(&mut request);
        let what = format!("{what} for {}", kernel.op);
        match request.prepare(device)? {
            Ok(_) => failed(format!("{what} was accepted")),
            Err((DEVBAY_STATUS_UNSUPPORTED | DEVBAY_STATUS_INVALID, words)) => {
                ensure!(words.contains('('), "{what} was refused without a message");
                Ok(())
            }
            Err((_, words)) => failed(format!("{what}: expected UNSUPPORTED or INVALID, found {words}")),
        }
    })
}

/// Returns a device's list of kernels, by number, with the op of each description.
fn ask(rig: &Rig<'_>, device: &Device<'_>) -> Outcome<Vec<(u32, Option<String>)>> {
    let ask = rig.optional(rig.table()?.device_kernels, "device_kernels")?;
    let (mut list, mut detail) = (List::EMPTY, Detail::new());
    // SAFETY: the plugin's function with its own instance and device; the places are ours.
    let status =
        unsafe { ask(device.opened.handle.as_ptr(), device.info.handle, &mut list, &mut detail.raw) };
    ensure!(status == DEVBAY_STATUS_OK, "device_kernels returned {}", detail.describe(status));
    // SAFETY: the plugin keeps the list as long as the instance.
    let kernels = match unsafe { read_growable_list::<DeviceKernel>(&list) } {
        Ok(kernels) => kernels,
        Err(error) => return failed(format!("invalid list of a device's kernels: {error}")),
    };
    let mut found = Vec::new();
    for DeviceKernel { kernel_idx, info, .. } in kernels {
        let op = if info.is_null() {
            None
        } else {
            // SAFETY: `info` is not NULL, and the plugin keeps the description as long as the list.
            let read = unsafe { read_struct(info) };
            // SAFETY: the plugin keeps the description's text as long as the list.
            match read.and_then(|info| Ok(unsafe { info.op.get() }?.to_owned())) {
                Ok(op) => Some(op),
                Err(error) => return failed(format!("invalid kernel {kernel_idx} of a device: {error}")),
            }
        };
        found.push((kernel_idx, op));
    }
    Ok(found)
}

fn listed(rig: &Rig<'_>) -> Outcome {
    rig.each_device(|device| {
        // SAFETY: the entry gave the data, which `load.structs` has read.
        let n = unsafe { (*rig.query()).kernels.len };
        let kernels = ask(rig, device)?;
        for (position, (idx, op)) in kernels.iter().enumerate() {
            ensure!(*idx < 1 << 31, "kernel {idx}: indices from 2^31 are reserved");
            ensure!(
                op.is_some() || u64::from(*idx) < n,
                "kernel {idx} is not described, and the plugin lists only {n} kernels"
            );
            ensure!(
                !kernels[..position].iter().any(|(other, _)| other == idx),
                "kernel {idx} is listed twice"
            );
        }
        ensure!(kernels == ask(rig, device)?, "a second call listed different kernels");
        Ok(())
    })
}

fn index(rig: &Rig<'_>) -> Outcome {
    let n = rig.about()?.kernels.len() as u32;
    for idx in [n, n + 1000, u32::MAX] {
        refused(rig, &format!("kernel {idx} of {n}"), |request| request.kernel_idx = idx)?;
    }
    Ok(())
}

fn dtype(rig: &Rig<'_>) -> Outcome {
    let unknown =
        [DType { code: 77, bits: 32, lanes: 1 }, DType { code: DEVBAY_DTYPE_FLOAT, bits: 33, lanes: 1 }];
    for wrong in unknown {
        refused(rig, &format!("{wrong:?}"), |request| {
            for tensor in request.inputs.iter_mut().chain(&mut request.outputs) {
                tensor.dtype = wrong;
            }
        })?;
    }
    Ok(())
}

/// An attribute of a later version of an op, as far as a plugin can tell.
pub(super) const UNKNOWN_ATTRIBUTE: &str = "conformance_unknown";

fn attribute(rig: &Rig<'_>) -> Outcome {
    each_node(rig, Op::typical, |device, kernel, _, sample| {
        let of_kind = |kind: u32| (format!("an attribute of kind {kind}"), kind);
        let unknown = [0, 99, u32::MAX].map(of_kind);
        let named = (format!("the unknown attribute {UNKNOWN_ATTRIBUTE}"), DEVBAY_ATTR_INT);
        for (what, kind) in unknown.into_iter().chain([named]) {
            let mut request = Request::new(device, kernel.idx, &sample);
            request.attrs.push(Attr { kind, name: Str::new(UNKNOWN_ATTRIBUTE), ..Attr::empty() });
            match request.prepare(device)? {
                Err((DEVBAY_STATUS_UNSUPPORTED, _)) => {}
                Err((_, words)) => {
                    return failed(format!("{} with {what}: expected UNSUPPORTED, found {words}", kernel.op));
                }
                Ok(_) => return failed(format!("{} with {what} was accepted", kernel.op)),
            }
        }
        Ok(())
    })
}

fn shape(rig: &Rig<'_>) -> Outcome {
    // Static: requests borrow them for as long as they like.
    static LARGER: [i64; 2] = [97, 101];
    static HUGE: [i64; 4] = [1 << 40, 1 << 40, 1 << 40, 1 << 40];
    refused(rig, "an output whose shape differs from the op's", |request| {
        for tensor in &mut request.outputs {
            tensor.rank = 2;
            tensor.shape = LARGER.as_ptr();
        }
    })?;
    refused(rig, "operands of 2^160 elements", |request| {
        for tensor in request.inputs.iter_mut().chain(&mut request.outputs) {
            tensor.rank = 4;
            tensor.shape = HUGE.as_ptr();
        }
        // An attribute that names axes of another rank would be refused for that.
        request.attrs.clear();
    })
}

fn sizes(rig: &Rig<'_>) -> Outcome {
    each_node(rig, Op::typical, |device, kernel, request, _| {
        let desc_sizes = [PrepareDesc::REQUIRED_SIZE, size_of::<PrepareDesc>() + 8];
        let tensor_sizes = [Tensor::REQUIRED_SIZE, size_of::<Tensor>() + 8];
        let out_sizes = [Prepared::REQUIRED_SIZE, size_of::<Prepared>() + 8];
        for desc_size in desc_sizes {
            for tensor_size in tensor_sizes {
                // A list whose elements are of another size than ours has another stride.
                let inputs = Strided::new(&request.inputs, tensor_size);
                let outputs = Strided::new(&request.outputs, tensor_size);
                let desc = PrepareDesc { inputs: inputs.list(), outputs: outputs.list(), ..request.desc() };
                let mut desc = AnySize::new(&desc, desc_size);
                for out_size in out_sizes {
                    let mut out = AnySize::new(&Prepared::empty(), out_size);
                    // SAFETY: every struct has as many bytes as it says (`AnySize`, `Strided`).
                    let answer = unsafe { prepare_raw(device, desc.as_ptr(), out.as_ptr()) }?;
                    let what = format!(
                        "{} with a description of {desc_size} bytes, tensors of {tensor_size} and a result of \
                         {out_size}",
                        kernel.op
                    );
                    match answer {
                        Ok(node) => drop(node),
                        // A kernel with a workspace has no way to tell an old host, and may say no.
                        Err((DEVBAY_STATUS_UNSUPPORTED, _)) if out_size == Prepared::REQUIRED_SIZE => {}
                        Err((_, words)) => return failed(format!("{what}: {words}")),
                    }
                    ensure!(out.is_intact(), "{what}: the plugin wrote beyond the result's end");
                }
            }
        }
        Ok(())
    })
}

/// Tensors of a size, one after the other.
struct Strided {
    bytes: Vec<u64>,
    len: usize,
    stride: usize,
}

impl Strided {
    fn new(tensors: &[Tensor], size: usize) -> Self {
        let stride = size.next_multiple_of(8);
        // Fields that an older host does not have look like garbage when they are read all the same.
        let mut bytes = vec![0xd7d7_d7d7_d7d7_d7d7u64; tensors.len() * stride / 8];
        for (i, tensor) in tensors.iter().enumerate() {
            let words = &mut bytes[i * stride / 8..];
            // SAFETY: `stride` bytes of the list; both have the smaller size.
            unsafe {
                std::ptr::copy_nonoverlapping(
                    std::ptr::from_ref(tensor).cast::<u8>(),
                    words.as_mut_ptr().cast(),
                    size.min(size_of::<Tensor>()),
                );
            };
            // The struct's size is its first field.
            bytemuck::cast_slice_mut(words)[0] = size as u32;
        }
        Self { bytes, len: tensors.len(), stride }
    }

    fn list(&self) -> List {
        List { ptr: self.bytes.as_ptr().cast(), len: self.len as u64, stride: self.stride as u64 }
    }
}

fn threads(rig: &Rig<'_>) -> Outcome {
    rig.allows_threads()?;
    each_node(rig, Op::typical, |device, kernel, _, sample| {
        let sample = &sample;
        let ask = |_| -> Outcome {
            let request = Request::new(device, kernel.idx, sample);
            for _ in 0..20 {
                match request.prepare(device)? {
                    Ok(node) => drop(node),
                    Err((_, words)) => return failed(format!("prepare of {}: {words}", kernel.op)),
                }
            }
            Ok(())
        };
        at_once(0..4, ask).map(drop)
    })
}

fn cost(rig: &Rig<'_>) -> Outcome {
    let kernel_cost = rig.optional(rig.table()?.kernel_cost, "kernel_cost")?;
    let mut n_answers = 0;
    each_node(rig, Op::typical, |device, kernel, request, sample| {
        let mut out = KernelCost::empty();
        let mut detail = Detail::new();
        let instance = device.opened.handle.as_ptr();
        // SAFETY: the plugin's function with its own instance; the structs live for the call.
        match unsafe { kernel_cost(instance, &request.desc(), &mut out, &mut detail.raw) } {
            DEVBAY_STATUS_OK => n_answers += 1,
            DEVBAY_STATUS_UNSUPPORTED => return Ok(()),
            status => return failed(format!("kernel_cost of {}: {}", kernel.op, detail.describe(status))),
        }
        let written = sample.expected.size() as u64;
        ensure!(
            out.bytes_written == written,
            "{} writes {written} bytes, but its cost says {}",
            kernel.op,
            out.bytes_written
        );
        let read: u64 = sample.inputs.iter().map(|input| input.size() as u64).sum();
        // A kernel may read an operand more than once, and still counts it once.
        ensure!(
            out.bytes_read == read,
            "{} reads operands of {read} bytes, but its cost says {}",
            kernel.op,
            out.bytes_read
        );
        if kernel.op == "MatMul" {
            let inner = *sample.inputs[0].shape.last().unwrap_or(&1) as u64;
            let flops = 2 * sample.expected.values.len() as u64 * inner;
            ensure!(
                (flops / 2..=flops * 2).contains(&out.flops),
                "a product takes {flops} flops, but its cost says {}",
                out.flops
            );
        }
        Ok(())
    })?;
    if n_answers == 0 {
        return not_run(Why::NotOffered, "`kernel_cost` returns UNSUPPORTED for the base set");
    }
    Ok(())
}

fn shape_function(rig: &Rig<'_>) -> Outcome {
    let kernel_shape = rig.optional(rig.table()?.kernel_shape, "kernel_shape")?;
    let mut n_answers = 0;
    each_node_of(
        rig,
        |_| true,
        Op::typical,
        |device, kernel, request, sample| {
            const GUARD: i64 = 0x5a5a_5a5a;
            let ask = |output_idx: u32, rank_max: u32| {
                let desc = PrepareDesc { outputs: List::EMPTY, ..request.desc() };
                let mut dtype = DType { code: 0, bits: 0, lanes: 0 };
                let (mut shape, mut rank) = ([GUARD; 16], u32::MAX);
                let instance = device.opened.handle.as_ptr();
                // SAFETY: the plugin's function with its own instance; all places are ours, and at least as large as said.
                let status = unsafe {
                    kernel_shape(
                        instance,
                        &desc,
                        output_idx,
                        &mut dtype,
                        shape.as_mut_ptr(),
                        rank_max,
                        &mut rank,
                        null_mut(),
                    )
                };
                (status, dtype, shape, rank)
            };
            let (status, dtype, shape, rank) = ask(0, 8);
            if status != DEVBAY_STATUS_OK {
                // Only ops outside ONNX need one.
                return Ok(());
            }
            n_answers += 1;
            let expected = &sample.expected;
            let found = shape.get(..rank as usize).unwrap_or(&[]);
            ensure!(
                dtype == expected.dtype && found == expected.shape,
                "{}: expected {:?} {:?}, found {dtype:?} {found:?}",
                kernel.op,
                expected.dtype,
                expected.shape
            );
            let (status, _, shape, _) = ask(0, expected.shape.len() as u32 - 1);
            ensure!(
                status == DEVBAY_STATUS_INVALID && shape[expected.shape.len() - 1] == GUARD,
                "{}: a capacity of one extent too few returned {}",
                kernel.op,
                status_name(status)
            );
            let (status, ..) = ask(7, 8);
            ensure!(status != DEVBAY_STATUS_OK, "{} has one output, but output 7 has a type", kernel.op);
            Ok(())
        },
    )?;
    if n_answers == 0 {
        return not_run(Why::NotOffered, "no kernel of the base set has a shape function");
    }
    Ok(())
}
