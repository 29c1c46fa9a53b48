//! Programs that a device's compiler takes whole, where the plugin has the extension (B6, B9, B23): code here, graphs
//! beside this.

pub(crate) mod claims;
pub(crate) mod graph;
mod model;
pub(crate) mod stored;

use crate::case::Case;
use crate::rig::{Buffer, Detail, Device, Rig, status_name};
use crate::verdict::{Outcome, Why, ensure, failed, not_run};
use devbay_plugin_api::abi::*;
use model::{F32, bytes};
use std::collections::BTreeSet;
use std::ptr::null_mut;

pub(crate) const CASES: &[Case] = &[
    Case {
        id: "compile.formats",
        rules: &["B5", "B6", "B23"],
        requires: "a device with a compiler lists the formats that it reads, each once",
        needs: &["devices.list", "negotiate.extensions"],
        run: formats,
    },
    Case {
        id: "compile.refusals",
        rules: &["B18", "B23"],
        requires: "an unknown format is refused with UNSUPPORTED, and invalid code with a message; neither gives \
                   a program",
        needs: &["compile.formats"],
        run: refusals,
    },
    Case {
        id: "compile.program",
        rules: &["B9", "B12", "B23"],
        requires: "two runs of a program give the right results in separate buffers; the inputs do not change, \
                   and the results outlive the program",
        needs: &["compile.formats", "stream.signal"],
        run: program,
    },
];

fn table(device: &Device<'_>) -> Outcome<CompileTable> {
    device.extension(extension::COMPILE, "compiles whole programs")
}

/// Returns the formats of a device.
fn names(table: &CompileTable, device: &Device<'_>) -> Outcome<Vec<String>> {
    let Some(ask) = table.formats else {
        ensure!(table.claim.is_some(), "the compiler extension has neither formats nor claim");
        return not_run(Why::NotOffered, "the compiler accepts only graphs");
    };
    let (mut list, mut detail) = (List::EMPTY, Detail::new());
    // SAFETY: the plugin's function with its own device; the places are ours.
    let status = unsafe { ask(device.info.handle, &mut list, &mut detail.raw) };
    ensure!(status == DEVBAY_STATUS_OK, "formats returned {}", detail.describe(status));
    // SAFETY: the plugin keeps the list as long as the instance.
    let texts = match unsafe { read_list::<Str>(&list, "Str") } {
        Ok(texts) => texts,
        Err(error) => return failed(format!("invalid list of formats: {error}")),
    };
    let mut names = Vec::new();
    for text in texts {
        // SAFETY: the plugin keeps the texts of the list as long as the instance.
        match unsafe { text.get() } {
            Ok(name) => names.push(name.to_owned()),
            Err(error) => return failed(format!("invalid name of a format: {error}")),
        }
    }
    Ok(names)
}

fn formats(rig: &Rig<'_>) -> Outcome {
    rig.each_device(|device| {
        let names = names(&table(device)?, device)?;
        let distinct: BTreeSet<&String> = names.iter().collect();
        ensure!(!names.is_empty(), "the compiler lists no format");
        ensure!(distinct.len() == names.len() && !names.contains(&String::new()), "formats {names:?}");
        Ok(())
    })
}

/// A program of the plugin's, freed when it goes.
struct Program {
    table: CompileTable,
    handle: *mut Executable,
}

// SAFETY: one program runs from many streams at once, which the table says.
unsafe impl Sync for Program {}

impl Drop for Program {
    fn drop(&mut self) {
        if let Some(free) = self.table.executable_free.filter(|_| !self.handle.is_null()) {
            // SAFETY: a function of the compiler made the handle, and it is given back once, here; its runs are over.
            unsafe { free(self.handle) };
        }
    }
}

/// `compile`, and `load`.
type MakeFn = unsafe extern "C" fn(
    *mut devbay_plugin_api::abi::Device,
    *const CompileDesc,
    *mut *mut Executable,
    *mut ErrorDetail,
) -> Status;

/// Calls a function that makes a program for a device.
fn make(
    table: &CompileTable,
    device: &Device<'_>,
    function: Option<MakeFn>,
    desc: CompileDesc,
) -> Outcome<(Status, Program, Detail)> {
    let Some(function) = function else {
        return failed("the compiler extension has no compile");
    };
    let desc = CompileDesc { device: device.info.handle, label: Str::new("conformance"), ..desc };
    let (mut out, mut detail) = (null_mut(), Detail::new());
    // SAFETY: the plugin's function with its own device; the rest is the caller's for the call.
    let status = unsafe { function(device.info.handle, &desc, &mut out, &mut detail.raw) };
    Ok((status, Program { table: *table, handle: out }, detail))
}

fn compile(
    table: &CompileTable,
    device: &Device<'_>,
    format: &str,
    code: &[u8],
    inputs: &[Tensor],
) -> Outcome<(Status, Program, Detail)> {
    let desc = CompileDesc {
        format: Str::new(format),
        code: code.as_ptr().cast(),
        code_bytes: code.len() as u64,
        inputs: List::new(inputs),
        ..CompileDesc::empty()
    };
    make(table, device, table.compile, desc)
}

fn refusals(rig: &Rig<'_>) -> Outcome {
    rig.each_device(|device| {
        let table = table(device)?;
        let formats = names(&table, device)?;
        let (status, program, _) = compile(&table, device, "devbay-no-such-format", b"nothing", &[])?;
        ensure!(
            status == DEVBAY_STATUS_UNSUPPORTED && program.handle.is_null(),
            "code of an unknown format returned {}, expected UNSUPPORTED and no program",
            status_name(status)
        );
        for format in formats {
            for code in [&b""[..], b"this is no program \xff\x00 of any kind"] {
                let (status, program, detail) = compile(&table, device, &format, code, &[])?;
                ensure!(
                    status != DEVBAY_STATUS_OK && program.handle.is_null(),
                    "{} bytes of invalid code were compiled as {format}",
                    code.len()
                );
                ensure!(!detail.text().is_empty(), "{} without a message", detail.describe(status));
            }
        }
        Ok(())
    })
}

/// Adds two vectors of four.
const ADD: &str = "module @add {\n  func.func public @main(%a: tensor<4xf32>, %b: tensor<4xf32>) -> tensor<4xf32> {\n    \
                   %0 = stablehlo.add %a, %b : tensor<4xf32>\n    return %0 : tensor<4xf32>\n  }\n}\n";
const SHAPE: [i64; 1] = [4];
const SIZE: usize = 16;

fn vector() -> Tensor {
    Tensor { dtype: F32, rank: 1, shape: SHAPE.as_ptr(), ..Tensor::empty() }
}

/// A buffer for a tensor of f32, which typed spaces are told.
fn alloc<'a>(device: &'a Device<'a>, shape: &[i64]) -> Outcome<Buffer<'a>> {
    let tensor = Tensor { dtype: F32, rank: shape.len() as u32, shape: shape.as_ptr(), ..Tensor::empty() };
    let size = 4 * shape.iter().product::<i64>() as usize;
    let desc = AllocDesc {
        size_bytes: size as u64,
        align: device.space().alloc_align.max(1),
        tensor: &tensor,
        ..AllocDesc::empty()
    };
    let (mut out, mut detail) = (Allocation::empty(), Detail::new());
    // SAFETY: the structs are ours and whole, the tensor is alive for the call.
    let status = unsafe { device.alloc_raw(&desc, &mut out, &mut detail.raw) }?;
    ensure!(
        status == DEVBAY_STATUS_OK,
        "buffer_alloc of a tensor of {shape:?} f32 returned {}",
        detail.describe(status)
    );
    device.own(out, size)
}

/// A run over these inputs, with a place for one result.
fn run_of(inputs: &[BufferRef], result: &mut *mut devbay_plugin_api::abi::Buffer) -> ExecuteDesc {
    ExecuteDesc { inputs: List::new(inputs), results: result, n_results: 1, ..ExecuteDesc::empty() }
}

fn program(rig: &Rig<'_>) -> Outcome {
    rig.each_device(|device| {
        let table = table(device)?;
        if !names(&table, device)?.iter().any(|name| name == "stablehlo") {
            return not_run(
                Why::NotOffered,
                "the compiler does not read StableHLO, the format of the suite's program",
            );
        }
        let (status, program, detail) =
            compile(&table, device, "stablehlo", ADD.as_bytes(), &[vector(), vector()])?;
        ensure!(
            status == DEVBAY_STATUS_OK,
            "compiling a sum of two vectors returned {}",
            detail.describe(status)
        );
        let (Some(ask), Some(execute)) = (table.executable_info, table.execute) else {
            return failed("the compiler extension lacks executable_info or execute");
        };
        let (mut info, mut detail) = (ExecutableInfo::empty(), Detail::new());
        // SAFETY: the plugin's function with its own program; the struct is ours.
        let status = unsafe { ask(program.handle, &mut info, &mut detail.raw) };
        ensure!(status == DEVBAY_STATUS_OK, "executable_info returned {}", detail.describe(status));
        // SAFETY: the plugin keeps the list as long as the program, which is freed below.
        let outputs = match unsafe { read_growable_list::<Tensor>(&info.outputs) } {
            Ok(outputs) => outputs,
            Err(error) => return failed(format!("invalid list of results: {error}")),
        };
        ensure!(
            info.inputs.len == 0,
            "a program compiled from code lists {} values of a graph as inputs",
            info.inputs.len
        );
        let is_vector = |tensor: &Tensor| {
            // SAFETY: the shape is not NULL and has an extent, as the rank says.
            tensor.dtype == F32
                && tensor.rank == 1
                && !tensor.shape.is_null()
                && unsafe { *tensor.shape } == 4
        };
        ensure!(
            outputs.len() == 1 && is_vector(&outputs[0]),
            "a sum of two vectors of four f32 has a result of another type"
        );

        let (a, b) = (bytes(&[1.0, -2.0, 3.5, 0.0]), bytes(&[0.25, 2.0, 1e6, -0.5]));
        let sum = bytes(&[1.25, 0.0, 1_000_003.5, -0.5]);
        let stream = device.stream()?;
        let inputs = [alloc(device, &SHAPE)?, alloc(device, &SHAPE)?];
        stream.upload(&a, &inputs[0], 0)?;
        stream.upload(&b, &inputs[1], 0)?;
        let references = [inputs[0].whole(), inputs[1].whole()];
        let mut results = Vec::new();
        for _ in 0..2 {
            let mut out = null_mut();
            // SAFETY: the plugin's function with its own program and stream; the arrays are as long as they say.
            let status =
                unsafe { execute(program.handle, stream.handle.as_ptr(), &run_of(&references, &mut out)) };
            ensure!(status == DEVBAY_STATUS_OK, "execute returned {}", stream.error_words(status));
            let made = Allocation { buffer: out, size_bytes: SIZE as u64, ..Allocation::empty() };
            results.push(device.own(made, SIZE)?);
        }
        ensure!(results[0].handle != results[1].handle, "two runs returned the same buffer");
        // Another number of inputs is not run.
        let mut out = null_mut();
        // SAFETY: program and stream are alive, and the arrays are as long as they say.
        let status =
            unsafe { execute(program.handle, stream.handle.as_ptr(), &run_of(&references[..1], &mut out)) };
        ensure!(status != DEVBAY_STATUS_OK && out.is_null(), "a program with two inputs ran with only one");
        stream.finish()?;
        drop(program);
        for (what, buffer, expected) in [
            ("the first run's result", &results[0], &sum),
            ("the second run's result", &results[1], &sum),
            ("the first input", &inputs[0], &a),
            ("the second input", &inputs[1], &b),
        ] {
            let found = stream.download(buffer, 0, SIZE)?;
            ensure!(found == *expected, "{what} contains the bytes {found:?}, expected {expected:?}");
        }
        Ok(())
    })
}
