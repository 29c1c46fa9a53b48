//! The libraries that tests run on, and programs with inputs and expected outputs.

#![allow(dead_code, reason = "each file of tests uses a part")]

pub mod graph;

use devbay_plugin_pjrt::buffer::{Buffer, HostArray};
use devbay_plugin_pjrt::client::{Client, Device};
use devbay_plugin_pjrt::element::ElementType;
use devbay_plugin_pjrt::library::Library;
use std::path::{Path, PathBuf};

/// The libraries of `DEVBAY_PJRT_PLUGINS=name:path[,name:path...]`; none, which is told, without the variable.
///
/// # Panics
/// If it is missing with `pjrt` among the words of `DEVBAY_REQUIRE`, or if one of them cannot be opened.
#[allow(clippy::print_stdout, reason = "a test that did not run says so")]
pub fn libraries() -> Vec<&'static Library> {
    let Ok(list) = std::env::var("DEVBAY_PJRT_PLUGINS") else {
        let required = std::env::var("DEVBAY_REQUIRE").unwrap_or_default();
        let required = required.split(',').any(|word| word.trim() == "pjrt");
        assert!(!required, "expected PJRT libraries, which DEVBAY_REQUIRE asks for: set DEVBAY_PJRT_PLUGINS");
        println!("not run: DEVBAY_PJRT_PLUGINS names no PJRT library");
        return Vec::new();
    };
    let open = |entry: &str| {
        let (_, path) = entry.split_once(':').unwrap_or_else(|| panic!("expected name:path, found {entry}"));
        // SAFETY: the tester trusts the libraries that DEVBAY_PJRT_PLUGINS names.
        unsafe { Library::open(Path::new(path)) }.unwrap()
    };
    list.split(',').map(open).collect()
}

/// A client of each library, with its first device.
pub fn devices() -> Vec<Device> {
    let first = |library| {
        let client = Client::create(library, &[]).unwrap();
        client.devices().into_iter().next().unwrap()
    };
    libraries().into_iter().map(first).collect()
}

/// Adds two arrays of four numbers.
pub const ADD: &[u8] = b"module @add {
  func.func public @main(%a: tensor<4xf32>, %b: tensor<4xf32>) -> tensor<4xf32> {
    %sum = stablehlo.add %a, %b : tensor<4xf32>
    return %sum : tensor<4xf32>
  }
}";

/// Uploads numbers.
pub fn upload(device: &Device, values: &[f32], dims: &[i64]) -> Buffer {
    let bytes = bytemuck::cast_slice(values);
    device.upload(&HostArray { bytes, element: ElementType::F32, dims, byte_strides: None }).unwrap()
}

/// Downloads numbers.
pub fn download(buffer: &Buffer) -> Vec<f32> {
    let mut bytes = vec![0; buffer.size_bytes().unwrap()];
    buffer.download(&mut bytes).unwrap();
    numbers(&bytes)
}

/// Bytes as numbers.
pub fn numbers(bytes: &[u8]) -> Vec<f32> {
    bytemuck::pod_collect_to_vec(bytes)
}

/// A program with inputs and what they give.
pub struct Program {
    pub name: String,
    pub code: Vec<u8>,
    pub inputs: Vec<Array>,
    pub outputs: Vec<Array>,
}

/// Numbers with their dimensions.
pub struct Array {
    pub dims: Vec<i64>,
    pub values: Vec<f32>,
}

/// The programs of `DEVBAY_STABLEHLO`, else those beside the tests: `NAME.stablehlo.mlir` and `.mlirbc` with `NAME.npz`.
///
/// # Panics
/// If a file cannot be read, or if there is no program.
pub fn programs() -> Vec<Program> {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
    let folder = std::env::var_os("DEVBAY_STABLEHLO").map_or_else(beside, PathBuf::from);
    let mut programs = Vec::new();
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let Some((stem, _)) = name.split_once(".stablehlo.mlir") else { continue };
        let arrays = folder.join(format!("{stem}.npz"));
        // A program of dynamic shapes has none: it is compiled only after its shapes were fixed.
        if !arrays.exists() {
            continue;
        }
        let (inputs, outputs) = (read(&arrays, "in"), read(&arrays, "out"));
        programs.push(Program { name, code: std::fs::read(&path).unwrap(), inputs, outputs });
    }
    assert!(!programs.is_empty(), "expected programs in {}", folder.display());
    programs.sort_by(|a, b| a.name.cmp(&b.name));
    programs
}

/// The arrays `{prefix}0`, `{prefix}1`, ... of an archive.
fn read(path: &Path, prefix: &str) -> Vec<Array> {
    let mut archive = zip::ZipArchive::new(std::fs::File::open(path).unwrap()).unwrap();
    let mut arrays = Vec::new();
    while let Ok(entry) = archive.by_name(&format!("{prefix}{}.npy", arrays.len())) {
        let file = npyz::NpyFile::new(entry).unwrap();
        assert_eq!(file.order(), npyz::Order::C);
        let dims = file.shape().iter().map(|dim| *dim as i64).collect();
        arrays.push(Array { dims, values: file.into_vec().unwrap() });
    }
    arrays
}
