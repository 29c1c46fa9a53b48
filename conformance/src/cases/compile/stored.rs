//! Programs that are kept as bytes, and programs for devices that are not there (B23).

use super::claims::claimed;
use super::graph::{Info, compiled, operands, run_once};
use super::model::Graph;
use super::{Program, make, table};
use crate::case::Case;
use crate::rig::{Detail, Device, Rig, pattern, status_name};
use crate::verdict::{Outcome, Why, ensure, failed, not_run};
use devbay_plugin_api::abi::*;
use std::ptr::null_mut;

pub(crate) const CASES: &[Case] = &[
    Case {
        id: "compile.stored",
        rules: &["B9", "B23"],
        requires: "a stored program is usable, and once loaded has the original's inputs, types and results, \
                   even if the original was freed",
        needs: &["compile.graph.run"],
        run: stored,
    },
    Case {
        id: "compile.stored.damaged",
        rules: &["B18", "B23"],
        requires: "damaged bytes are reported as unusable and refused with UNSUPPORTED, unless they load and run \
                   correctly",
        needs: &["compile.stored"],
        run: damaged,
    },
    Case {
        id: "compile.ahead",
        rules: &["B18", "B23"],
        requires: "compiling for an unknown target is refused with UNSUPPORTED or INVALID, and a message",
        needs: &["devices.list", "negotiate.extensions"],
        run: ahead,
    },
];

/// A program's bytes.
fn store(program: &Program) -> Outcome<Vec<u8>> {
    let Some(blob) = program.table.blob else {
        return not_run(Why::NotOffered, "the compiler's programs cannot be stored");
    };
    let (mut list, mut detail) = (List::EMPTY, Detail::new());
    // SAFETY: the plugin's function with its own program; the places are ours.
    let status = unsafe { blob(program.handle, &mut list, &mut detail.raw) };
    if status == DEVBAY_STATUS_UNSUPPORTED {
        return not_run(Why::Refused, format!("blob returned {}", detail.describe(status)));
    }
    ensure!(status == DEVBAY_STATUS_OK, "blob returned {}", detail.describe(status));
    // SAFETY: the plugin keeps the bytes as long as the program, which is alive.
    match unsafe { read_list::<u8>(&list, "uint8_t") } {
        Ok(bytes) => Ok(bytes),
        Err(error) => failed(format!("invalid bytes of a stored program: {error}")),
    }
}

/// Returns a device's verdict on bytes, one of DEVBAY_BLOB_*.
fn validate(device: &Device<'_>, blob: &[u8], what: &str) -> Outcome<u32> {
    let Some(validate) = table(device)?.validate else {
        return failed("programs can be stored, but there is no validate");
    };
    let (mut found, mut detail) = (u32::MAX, Detail::new());
    // SAFETY: the plugin's function with its own device; bytes and places are ours for the call.
    let status = unsafe {
        validate(device.info.handle, blob.as_ptr().cast(), blob.len() as u64, &mut found, &mut detail.raw)
    };
    ensure!(status == DEVBAY_STATUS_OK, "{what}: validate returned {}", detail.describe(status));
    ensure!(
        found <= DEVBAY_BLOB_UNSUPPORTED,
        "{what}: validate reported {found}, which is no DEVBAY_BLOB value"
    );
    Ok(found)
}

fn load(device: &Device<'_>, blob: &[u8]) -> Outcome<(Status, Program, Detail)> {
    let table = table(device)?;
    if table.load.is_none() {
        return failed("programs can be stored, but there is no load");
    }
    let desc =
        CompileDesc { code: blob.as_ptr().cast(), code_bytes: blob.len() as u64, ..CompileDesc::empty() };
    make(&table, device, table.load, desc)
}

/// Loads bytes that are usable, and refuses other results than the graph's.
fn run_loaded(device: &Device<'_>, graph: &Graph, blob: &[u8], expected: &Info, what: &str) -> Outcome {
    let (status, program, detail) = load(device, blob)?;
    ensure!(
        status == DEVBAY_STATUS_OK && !program.handle.is_null(),
        "{what} is reported as usable, but load returned {}",
        detail.describe(status)
    );
    let info = Info::of(&program)?;
    ensure!(info == *expected, "{what} loads as {info:?}, expected {expected:?}");
    let all = graph.numbers(7);
    let operands = operands(device, graph, &info, &all)?;
    run_once(device, &program, graph, &operands, None, &all)
}

/// Returns the graph, the bytes of its program, which is gone, and what that said of itself.
fn kept(device: &Device<'_>) -> Outcome<(Graph, Vec<u8>, Info)> {
    let graph = claimed(device)?;
    let program = compiled(device, &graph, &[])?;
    let bytes = store(&program)?;
    ensure!(bytes == store(&program)?, "a second blob differs from the first");
    ensure!(!bytes.is_empty(), "a stored program is empty");
    let info = Info::of(&program)?;
    Ok((graph, bytes, info))
}

fn stored(rig: &Rig<'_>) -> Outcome {
    rig.each_device(|device| {
        let (graph, bytes, info) = kept(device)?;
        let found = validate(device, &bytes, "a stored program")?;
        ensure!(found == DEVBAY_BLOB_USABLE, "a stored program is not usable: validate reported {found}");
        run_loaded(device, &graph, &bytes, &info, "a stored program")
    })
}

/// Returns damaged variants of bytes, with descriptions.
fn damages(bytes: &[u8]) -> Vec<(String, Vec<u8>)> {
    let n = bytes.len();
    let mut damages = vec![
        ("no bytes at all".to_owned(), Vec::new()),
        ("noise".to_owned(), pattern(n, 5)),
        ("zeros".to_owned(), vec![0; n]),
        ("a stored program with an extra byte".to_owned(), [bytes, &[0]].concat()),
    ];
    // At the ends, where headers and checksums are, and everywhere between.
    let mut places: Vec<usize> = (0..24).map(|i| i * (n - 1) / 23).chain((0..n).take(16)).collect();
    places.sort_unstable();
    places.dedup();
    for &at in &places {
        for bit in [0x01, 0x80] {
            let mut changed = bytes.to_vec();
            changed[at] ^= bit;
            damages.push((format!("a stored program with a flipped bit in byte {at} of {n}"), changed));
        }
        if at > 0 {
            damages.push((format!("the first {at} of a stored program's {n} bytes"), bytes[..at].to_vec()));
        }
    }
    damages
}

fn damaged(rig: &Rig<'_>) -> Outcome {
    rig.each_device(|device| {
        let (graph, bytes, info) = kept(device)?;
        for (what, changed) in damages(&bytes) {
            if validate(device, &changed, &what)? == DEVBAY_BLOB_USABLE {
                run_loaded(device, &graph, &changed, &info, &what)?;
                continue;
            }
            let (status, program, _) = load(device, &changed)?;
            ensure!(
                status == DEVBAY_STATUS_UNSUPPORTED && program.handle.is_null(),
                "{what} is reported as unusable: expected UNSUPPORTED from load and no program, found {}",
                status_name(status)
            );
        }
        // The device goes on.
        run_loaded(device, &graph, &bytes, &info, "a stored program after damaged ones")
    })
}

fn ahead(rig: &Rig<'_>) -> Outcome {
    let opened = rig.open()?;
    let devices = opened.devices()?;
    let table = table(&devices[0])?;
    let Some(compile_ahead) = table.compile_ahead else {
        return not_run(Why::NotOffered, "the plugin does not compile for absent devices");
    };
    for target in ["", "devbay-no-such-target", "devbay:no-such:target"] {
        let (mut out, mut detail) = (null_mut(), Detail::new());
        let status = Graph::sample().with_abi(|view| {
            let desc = CompileDesc { graph: view, target: Str::new(target), ..CompileDesc::empty() };
            // SAFETY: the plugin's function with its own instance; struct, graph and places are ours for the call.
            unsafe { compile_ahead(opened.handle.as_ptr(), &desc, &mut out, &mut detail.raw) }
        });
        let program = Program { table, handle: out };
        ensure!(
            matches!(status, DEVBAY_STATUS_UNSUPPORTED | DEVBAY_STATUS_INVALID) && program.handle.is_null(),
            "compiling for the target {target:?}: expected UNSUPPORTED or INVALID and no program, found {}",
            status_name(status)
        );
        ensure!(
            !detail.text().is_empty(),
            "{} for the target {target:?}, without a message",
            status_name(status)
        );
    }
    Ok(())
}
