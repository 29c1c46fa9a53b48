//! Features of ABI 0.9 for users of the command: the host's options, layers in libraries, groups of a compiler's nodes.

use crate::support::{Folder, command, defect, devbay, finish, root};
use std::path::Path;
use std::process::Command;

#[test]
fn a_limit_of_memory_is_kept() {
    let model = root().join("models/mnist_cnn/model.onnx");
    let run = |limit: &str, more: &[&str]| {
        let option = format!("cpu.devbay.memory_limit={limit}");
        let mut run = command();
        finish(run.arg("run").arg(&model).args(["--random", "1", "--plugin-option", &option]).args(more))
    };
    run("100000000", &[]).expect(0);
    for streams in ["inline", "async"] {
        run("10000", &["--plugin-option", &format!("cpu.streams={streams}")])
            .expect(7)
            .says(&["devbay.memory_limit is 10000"]);
    }
    run("much", &[]).expect(6).says(&["devbay.memory_limit: expected a number of bytes, found `much`"]);
    // A plugin without limits accepts it, and an unknown option is still refused.
    let folder = Folder::new();
    let minimal = defect(&folder, "MINOR_MIN=DEVBAY_ABI_MINOR");
    let minimal = minimal.to_str().expect("a path");
    let devices = |option: &str| devbay(["devices", "--plugin", minimal, "--plugin-option", option]);
    devices("minimal.devbay.memory_limit=1").expect(0).prints(&["minimal:0"]);
    devices("minimal.speed=1").expect(0).prints(&["unknown option speed"]);
}

#[test]
fn what_must_be_understood_is_left_out_and_said() {
    let folder = Folder::new();
    let plugin = defect(&folder, "KERNEL_FLAGS=0x100000000000000");
    let line = "kernel 0 (Relu) has flags that must be understood and are not known here: 0x100000000000000";
    devbay(["devices", "--plugin", plugin.to_str().expect("a path")]).expect(0).prints(&["minimal:0", line]);
}

#[test]
fn a_plugins_view_of_the_abi_is_shown() {
    let folder = Folder::new();
    let inspect = |plugin: &Path| devbay(["inspect", "--abi", plugin.to_str().expect("a path")]);
    inspect(&defect(&folder, "MINOR_MIN=DEVBAY_ABI_MINOR")).expect(0).prints(&[
        "the plugin speaks 0.9, this host 0.9",
        "  served as 0.9",
        "bytes, here",
        "  NULL: stream_signal, stream_reached",
        "  it does not show its layouts, as plugins in C",
    ]);
    inspect(&defect(&folder, "DEFECT_LAYOUT")).expect(0).prints(&[
        "  refused: it was compiled with another header: devbay_device_info.flags",
        "    only there: devbay_device_info.a_field_of_tomorrow",
        "    only here: devbay_alloc_desc",
    ]);
    let cpu = Path::new(env!("CARGO_BIN_EXE_devbay")).with_file_name("libdevbay_plugin_cpu.so");
    let shown = inspect(&cpu).expect(0);
    shown.prints(&["served as 0.9", "of which 0 lie elsewhere"]);
    let model = root().join("models/mnist_cnn/model.onnx");
    inspect(&model).expect(2).says(&["--abi is for plugins"]);
}

#[test]
fn a_layer_comes_from_a_library() {
    let folder = Folder::new();
    let layer = folder.path("layer.so");
    let source = root().join("conformance/fixtures/layer.c");
    let mut compiler = Command::new(std::env::var("CC").unwrap_or_else(|_| "cc".to_owned()));
    compiler.args(["-std=c11", "-shared", "-fPIC", "-I"]).arg(root().join("plugin-api/include"));
    finish(compiler.arg("-o").arg(&layer).arg(source)).expect(0);
    let layer = layer.to_str().expect("a path");
    let model = root().join("models/mnist_cnn/model.onnx");
    let model = model.to_str().expect("a path");
    devbay(["run", model, "--random", "1", "--layers", layer, "-v"])
        .expect(0)
        .says(&["layer: create", "layer: prepare"]);
    devbay(["devices", "--layers", model]).expect(2).says(&["not a loadable library"]);
    devbay(["devices", "--plugin", layer])
        .expect(0)
        .prints(&["saying is a layer and no plugin; --layers takes its library"]);
}

/// A product and the sum after it, which the fixture's compiler takes only together.
const PAIR: &str = "devbay-program 1\n\nprogram \"p\"(%x: f32[2, 3], %w: f32[3, 2], %b: f32[2]) {\n  \
    %h: f32[2, 2] = MatMul@13(%x, %w) as \"product\"\n  \
    %s: f32[2, 2] = Add@14(%h, %b) as \"sum\"\n  \
    %y: f32[2, 2] = Relu@14(%s) as \"relu\"\n  return %y\n}\n";

#[test]
fn a_group_goes_to_its_compiler_whole_or_not_at_all() {
    let folder = Folder::new();
    let model = folder.write("pair.txt", PAIR);
    let expected = folder.path("expected.npz");
    let with = |subcommand: &str, more: &[&str]| {
        let mut devbay = command();
        // Passes would fuse them.
        devbay.arg(subcommand).arg(&model).args(["--random", "1", "--no-pass", "all"]).args(more);
        finish(devbay.env("DEVBAY_DEFECT", "compiler")).expect(0)
    };
    with("run", &["--output", expected.to_str().expect("a path")]);
    let library = Path::new(env!("CARGO_BIN_EXE_devbay")).with_file_name("libdevbay_plugin_defect.so");
    let compiler = ["--plugin", library.to_str().expect("a path"), "--device", "compiler:0"];
    let pair = "  product (MatMul@13)\n  sum (Add@14)\n";
    // The whole group; one node elsewhere, and so the other one too; a node outside the group elsewhere.
    for (pin, stages) in [
        (None, ["stage 0: program of 3 nodes on compiler:0", pair]),
        (
            Some("sum=cpu:0"),
            ["stage 0: section on cpu:0, 2 launches", "stage 1: program of 1 node on compiler:0"],
        ),
        (Some("relu=cpu:0"), ["stage 0: program of 2 nodes on compiler:0", pair]),
    ] {
        let pinned: Vec<&str> = pin.map_or_else(Vec::new, |pin| vec!["--pin", pin]);
        let on = [&compiler[..], &pinned].concat();
        with("run", &[&on[..], &["--compare", expected.to_str().expect("a path")]].concat());
        let mut inspect = command();
        inspect.arg("inspect").arg(&model).args(["--plan", "--no-pass", "all"]).args(on);
        finish(inspect.env("DEVBAY_DEFECT", "compiler")).expect(0).prints(&stages);
    }
}
