//! Fails each request for memory in turn, through a load and a run.

use super::allocator::{live, refusing};
use super::{alone, models, runtime};
use devbay_host::arrays::read_npz;
use devbay_host::internals::compare::{Tolerance, compare};
use devbay_host::internals::core::program::text;
use devbay_host::internals::core::tensor::{AlignedBytes, F32};
use devbay_host::internals::import;
use devbay_host::{Device, ErrorKind, Model, Reading, Result, Session, Tensor, TensorType};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The model to load: one of the repository's files, another file, or a text.
enum Source {
    File(&'static str, Reading),
    Path(PathBuf, Reading),
    Text(&'static str),
}

/// Ops whose kernels allocate: factors, tables, packed weights, slices of a scan.
const OPS: &str = "devbay-program 1\nprogram \"ops\"(%x: f32[1,4,300]) {\n\
    \u{20} %step = const i64[] [10]\n\
    \u{20} %length = const i64[] [74]\n\
    \u{20} %sizes = const i64[3] [1, 4, 450]\n\
    \u{20} %pads = const i64[6] [0, 0, 3, 0, 0, 3]\n\
    \u{20} %four = const i64[2] [4, 450]\n\
    \u{20} %k = const i64[1] [5]\n\
    \u{20} %wide = Resize@19(%x, _, _, %sizes) {mode = \"linear\"}\n\
    \u{20} %padded = Pad@25(%wide, %pads)\n\
    \u{20} %lines = Reshape@25(%wide, %four)\n\
    \u{20} %spectra = STFT@17(%lines, %step, _, %length)\n\
    \u{20} %top, %at = TopK@24(%padded, %k)\n\
    \u{20} %turned = Scan@25(%lines) {num_scan_inputs = 1, scan_output_axes = [1]} body(%row: f32[450]) {\n\
    \u{20}   %less = Relu@14(%row)\n\
    \u{20}   return %less\n\
    \u{20} }\n\
    \u{20} return %spectra, %top, %turned\n}\n";

fn loaded(source: &Source, device: &Arc<Device>) -> Result<Session> {
    let program = match source {
        Source::File(name, reading) => import::open(models().join(name), *reading)?,
        Source::Path(path, reading) => import::open(path, *reading)?,
        Source::Text(text) => text::parse(text)?,
    };
    Session::new(&Model::from_program(program), device)
}

/// Loads a model, reads its inputs, and runs it.
fn whole(source: &Source, inputs: Option<&Path>, device: &Arc<Device>) -> Result<Vec<Tensor>> {
    let session = loaded(source, device)?;
    let given = match inputs {
        Some(path) => read_npz(path)?,
        None => session
            .inputs()
            .iter()
            .map(|port| Ok((port.name.to_string(), made_up(port.ty.as_ref())?)))
            .collect::<Result<_>>()?,
    };
    let given: Vec<(&str, &Tensor)> = given.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    session.run(&given)
}

/// Returns varied, small numbers.
fn made_up(ty: Option<&TensorType>) -> Result<Tensor> {
    let ty = ty.expect("an input's type");
    assert_eq!(ty.dtype, F32, "{ty}");
    let shape: Vec<usize> = ty.shape.iter().flatten().map(|dim| dim.known().unwrap_or(1)).collect();
    let size = shape.iter().product::<usize>() * 4;
    let mut tensor = AlignedBytes::zeroed(size)?;
    for (i, to) in bytemuck::cast_slice_mut(tensor.as_mut_slice()).iter_mut().enumerate() {
        *to = (i * 37 % 101) as f32 / 50.0 - 1.0;
    }
    Tensor::from_storage(F32, &shape, Arc::new(tensor), 0, size)
}

fn check(source: &Source, inputs: Option<&str>) {
    let _alone = alone();
    let (_runtime, device) = runtime();
    let inputs = inputs.map(|name| models().join(name));
    let run = || whole(source, inputs.as_deref(), &device);
    let expected = run().expect("a run with memory");
    let same = |found: &[Tensor]| {
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(&expected) {
            // A pass without memory is skipped, which changes rounding.
            let verdict = compare("result", found, expected, Tolerance { relative: 1e-4, absolute: 1e-5 });
            assert!(verdict.matches, "{verdict:?}");
        }
    };
    same(&run().expect("a run with memory"));
    let before = live();
    let (mut n, mut failed) = (0, 0);
    loop {
        let (result, n_requests) = refusing(n, run);
        match result {
            Ok(found) => same(&found),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::OutOfMemory, "request {n} of {n_requests}: {error:?}");
                failed += 1;
            }
        }
        if n_requests <= n {
            break;
        }
        if n % 16 == 0 {
            same(&run().unwrap_or_else(|error| panic!("after request {n}: {error:?}")));
        }
        n += 1;
    }
    same(&run().expect("a run with memory"));
    let grown = live() - before;
    eprintln!("{n} requests, {failed} of which failed the load or the run; {grown} bytes more than before");
    assert!(n > 10 && failed > 0, "{n} requests, {failed} of them failed");
    assert!(grown < 4096, "{grown} bytes more than before");
}

#[test]
fn a_network_mapped() {
    check(&Source::File("mnist_cnn/model.onnx", Reading::Mapped), Some("mnist_cnn/case0.inputs.npz"));
}

#[test]
fn a_network_copied_with_its_data_beside_it() {
    check(
        &Source::File("mnist_external/model.onnx", Reading::Copied),
        Some("mnist_external/case0.inputs.npz"),
    );
}

#[test]
fn a_text() {
    check(&Source::File("eighteen_scalars/program.txt", Reading::Mapped), None);
}

/// Gates of a recurrent network, and the loop over them.
const RECURRENT: &str = "devbay-program 1\nprogram \"gru\"(%x: f32[6,1,8], %w: f32[1,36,8], %r: f32[1,36,12], %h: f32[1,1,12]) {\n\
    \u{20} %y, %last = GRU@22(%x, %w, %r, _, _, %h) {hidden_size = 12}\n\
    \u{20} return %y, %last\n}\n";

/// One attention head of a transformer with its normalisation and the following nodes, as exporters write them.
const TRANSFORMER: &str = "devbay-program 1\nprogram \"block\"(%x: f32[1,6,16], %g: f32[16], %wq: f32[16,16], %wk: f32[16,16], \
    %wv: f32[16,16], %up: f32[16,32], %down: f32[32,16]) {\n\
    \u{20} %n = LayerNormalization@17(%x, %g)\n\
    \u{20} %q = MatMul@13(%n, %wq)\n\
    \u{20} %k = MatMul@13(%n, %wk)\n\
    \u{20} %v = MatMul@13(%n, %wv)\n\
    \u{20} %kt = Transpose@25(%k) {perm = [0, 2, 1]}\n\
    \u{20} %scores = MatMul@13(%q, %kt)\n\
    \u{20} %shares = Softmax@13(%scores)\n\
    \u{20} %seen = MatMul@13(%shares, %v)\n\
    \u{20} %sum = Add@14(%x, %seen)\n\
    \u{20} %wide = MatMul@13(%sum, %up)\n\
    \u{20} %active = Gelu@20(%wide)\n\
    \u{20} %y = MatMul@13(%active, %down)\n\
    \u{20} return %y\n}\n";

#[test]
fn a_recurrent_network() {
    check(&Source::Text(RECURRENT), None);
}

#[test]
fn a_block_of_a_transformer() {
    check(&Source::Text(TRANSFORMER), None);
}

/// Trained models besides the repository's: a recurrent one with control flow, and one of convolutions and GRUs.
#[test]
#[ignore = "full: thousands of loads of models of DEVBAY_MODELS"]
fn trained_models() {
    let folder = std::env::var_os("DEVBAY_MODELS").expect("DEVBAY_MODELS names the folder of trained models");
    for name in ["silero_vad_v6", "aecmos_gru_b", "khmercut_int8"] {
        let folder = Path::new(&folder).join(name);
        let (model, inputs) = (folder.join("model.onnx"), folder.join("case0.inputs.npz"));
        eprintln!("{name}:");
        check(&Source::Path(model, Reading::Mapped), inputs.to_str());
    }
}

#[test]
#[ignore = "full: 2,400 loads take a minute or two"]
fn a_large_network() {
    check(&Source::File("efficientnet_lite0/model.onnx", Reading::Mapped), None);
}

#[test]
fn ops_that_take_memory_by_themselves() {
    check(&Source::Text(OPS), None);
}
